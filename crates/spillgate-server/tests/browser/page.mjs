// Uses the page of the admin listener in headless Chromium, as an operator does.
//
//   node page.mjs TOOLS CHROMIUM PART OPTIONS
//
// PART is the name of a function in PARTS. OPTIONS is a JSON object: `admin` and `http` are the addresses of the server, and
// `pictures` is a folder for screenshots or null. A part that fails throws an error. A part can print lines for the Rust test
// that started it.

import assert from 'node:assert/strict';
import { join, resolve } from 'node:path';

import { DEADLINE_MS, launch, violationTexts } from './launch.mjs';

const WAYS = [
  { name: 'light', scheme: 'light', width: 1280, height: 900 },
  { name: 'dark', scheme: 'dark', width: 1280, height: 900 },
  { name: 'phone', scheme: 'light', width: 360, height: 740 },
  { name: 'dark-phone', scheme: 'dark', width: 320, height: 640 },
];

const [tools, chromium, part, text] = process.argv.slice(2);
const options = JSON.parse(text);
const { admin, http, pictures } = options;
const { browser, axe, close } = await launch(resolve(tools), chromium, true);

// Opens the page. `found` gets all errors, and all requests to other servers.
async function open(way, found, { withoutPolicy = false, expected = /$^/ } = {}) {
  const page = await browser.newPage();
  page.setDefaultTimeout(DEADLINE_MS);
  const note = (text) => expected.test(text) || found.push(`${way.name}: ${text}`);
  page.on('request', (request) => request.url().startsWith(`${admin}/`) || note(`a request to ${request.url()}`));
  page.on('dialog', (dialog) => {
    note(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on('pageerror', (error) => note(error.stack));
  page.on('console', (message) => ['error', 'warn'].includes(message.type()) && note(`${message.text()} ${message.location().url ?? ''}`));
  await page.setBypassCSP(withoutPolicy);
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: way.scheme }]);
  await page.setViewport({ width: way.width, height: way.height });
  await page.goto(`${admin}/`, { waitUntil: 'load' });
  return page;
}

const [LIGHT] = WAYS;
const texts = (page, selector) => page.$$eval(selector, (nodes) => nodes.map((node) => node.textContent));
const textOf = (page, selector) => page.$eval(selector, (node) => node.textContent);

// Waits until an element with this text can be seen.
async function until(page, selector, wanted) {
  const seen = (selector, source) => [...document.querySelectorAll(selector)].some((node) => node.checkVisibility() && new RegExp(source).test(node.textContent));
  try {
    await page.waitForFunction(seen, {}, selector, wanted.source);
  } catch {
    throw new Error(`no ${selector} has the text ${wanted}; the page has: ${await page.evaluate(() => document.body.innerText)}`);
  }
}

const live = (page) => until(page, '#live', /^Live /);

// Waits until the page of a limit has its figures. Until then, what is below them moves.
const complete = async (page) => {
  await until(page, '[aria-labelledby=insight] p', /\w+\./);
  await until(page, '.figures caption', /^What callers did/);
};

// Clicks an element. Clicks are counted, because an operator should need few.
let clicks = 0;
async function click(page, selector, wanted = /(?:)/) {
  clicks += 1;
  for (let tries = 10; ; tries -= 1) {
    await until(page, selector, wanted);
    try {
      for (const node of await page.$$(selector)) {
        if (await node.evaluate((node, source) => node.checkVisibility() && new RegExp(source).test(node.textContent), wanted.source)) return await node.click();
      }
      throw new Error(`${selector} has gone`);
    } catch (error) {
      // A row that needs attention can move out of the screen, between the moment it is found and the click.
      if (tries === 1 || !/not clickable|has gone|detached/.test(error.message)) throw error;
    }
  }
}

// Opens another view, and waits until the page has noticed: the browser sends the event a moment later.
async function show(page, hash) {
  await page.evaluate((hash) => new Promise((done) => {
    const before = location.href;
    addEventListener('hashchange', done, { once: true });
    location.hash = hash;
    if (location.href === before) done();
  }), hash);
}

// Waits until the view has the field, and types into it.
async function type(page, selector, text) {
  const field = await page.waitForSelector(selector, { visible: true });
  await field.type(text);
}

// Asks the server for a decision, as a program does.
async function check(descriptor, domain = 'api') {
  const answer = await fetch(`${http}/v1/check`, { method: 'POST', body: JSON.stringify({ domain, descriptors: [descriptor] }) });
  return answer.status;
}

async function post(path, body) {
  const answer = await fetch(`${admin}${path}`, { method: 'POST', headers: { 'X-Spillgate-Admin': '1' }, body: JSON.stringify(body) });
  assert.equal(answer.status, 200);
}

// The views. Each has a text that the page shows only when the view is complete.
const VIEWS = [
  ['overview', '#/', '.now', /Refused \/ s\d/],
  ['limit', '#/limit/api/user_id/0', '.callers', /user_id=7/],
  ['explain', '#/explain/api/user_id/7', '.answer', /Refused now by per_user/],
  ['blocks', '#/blocks', 'table', /203\.0\.113\.77/],
  ['reloads', '#/reloads', 'article', /per_key/],
];

async function views(found) {
  const violations = [];
  for (const way of WAYS) {
    const page = await open(way, found);
    await live(page);
    for (const [name, hash, selector, wanted] of VIEWS) {
      await show(page, hash);
      await until(page, selector, wanted);
      if (name === 'limit') await until(page, '.view > .lede', /^Now /);
      // The width and the title are read in one call, because the page changes all the time.
      const { wide, title } = await page.evaluate(() => {
        const { scrollWidth, clientWidth } = document.scrollingElement;
        return { wide: scrollWidth > clientWidth, title: document.title };
      });
      if (wide) found.push(`${way.name}: ${name} is wider than the screen`);
      assert.match(title, / – spillgate 127\.0\.0\.1:\d+$/);
      // Each server of a fleet has a page, so each page names its server.
      assert.equal(await textOf(page, '#server'), new URL(admin).host);
      await page.evaluate(axe);
      violations.push(...violationTexts(`${way.name} ${name}`, await page.evaluate(() => window.axe.run({ resultTypes: ['violations'] }))));
      if (pictures) await page.screenshot({ path: join(pictures, `${name}-${way.name}.png`), fullPage: true });
      console.log(`${way.name}: ${name} was looked at`);
    }
    await page.close();
  }
  assert.deepEqual(violations, []);
}

// The pictures of the book, of a server with the traffic of ten minutes or more. `book` names the request to explain: its domain, and its
// keys and values.
async function book(found) {
  const hash = `#/explain/${options.book.map(encodeURIComponent).join('/')}`;
  for (const [name, view, width, selector, wanted] of [['page-overview', '#/', 1180, '.limits tbody tr', /./], ['page-explain', hash, 965, '.answer', /now/]]) {
    const page = await open({ name, scheme: 'light', width, height: 800 }, found);
    await live(page);
    await show(page, view);
    await until(page, selector, wanted);
    // The first figures come after a few seconds.
    if (view === '#/') await until(page, '.now', /Refused \/ s\d/);
    const bottom = await page.evaluate(() => {
      document.activeElement.blur();
      const last = [...document.querySelectorAll('.limits, #answer')].at(-1);
      return Math.ceil(last.getBoundingClientRect().bottom + scrollY + 16);
    });
    await page.screenshot({ path: join(pictures, `${name}.png`), captureBeyondViewport: true, clip: { x: 0, y: 0, width, height: bottom } });
    await page.close();
  }
}

// The widths of screens that people have.
const WIDTHS = [320, 390, 768, 1024, 1440];
// The rows of the overview are not higher than this, in pixels: on a wide screen, and on a narrow one.
const [ROW_MAX, NARROW_ROW_MAX] = [80, 176];

// On a narrow screen, the callers of a limit stand above its charts, and each cell of a table is a line with its label and its value.
async function callersFirst(page, width, where, found) {
  const { callers, charts, heads, lines } = await page.evaluate(() => {
    const top = (selector) => document.querySelector(selector).getBoundingClientRect().top;
    const cells = [...document.querySelectorAll('.callers td[data-head], .figures td[data-head]')];
    return {
      callers: top('[aria-labelledby=callers]'), charts: top('[aria-label=Charts]'), heads: cells.length,
      lines: cells.filter((cell) => getComputedStyle(cell, '::before').content === `"${cell.dataset.head}"`).length,
    };
  });
  if ((callers < charts) !== (width < 960)) found.push(`${where} has its callers at ${callers} and its charts at ${charts}`);
  assert.ok(heads > 0);
  assert.equal(lines, width < 704 ? heads : 0, where);
}

// With long names and many limits, no view scrolls sideways, and the rows of the overview stay low.
async function fits(found) {
  const violations = [];
  for (const scheme of ['light', 'dark']) {
    const page = await open({ name: `${options.limits} limits, ${scheme}`, scheme, width: 1440, height: 900 }, found);
    await live(page);
    await until(page, '.notice.bad', /reload of the rules failed/);
    const long = `#/limit/api/${encodeURIComponent(`tenant=${'t'.repeat(256)}`)}/0`;
    const fitting = [VIEWS[0], ['limit', '#/limit/api/user_id/0', '.callers', /user_id=/], ['long', long, 'h1', /n{256}/], ...VIEWS.slice(2, 4).map(([name, hash]) => [name, hash, 'h1', /./])];
    for (const [name, hash, selector, wanted] of fitting) {
      await show(page, hash);
      await until(page, selector, wanted);
      if (/limit|long/.test(name)) await until(page, '.view > .lede', /^Now /);
      for (const width of WIDTHS) {
        await page.setViewport({ width, height: 900 });
        const { wide, rows } = await page.evaluate(() => {
          const { scrollWidth, clientWidth } = document.scrollingElement;
          return { wide: scrollWidth > clientWidth, rows: [...document.querySelectorAll('.limits tbody tr')].map((row) => row.offsetHeight) };
        });
        const where = `${name} with ${options.limits} limits at ${width} pixels`;
        if (wide) found.push(`${where} is wider than the screen`);
        if (name === 'overview') assert.equal(rows.length, options.limits);
        if (name === 'limit') await callersFirst(page, width, where, found);
        const highest = Math.max(0, ...rows);
        if (highest > (width < 704 ? NARROW_ROW_MAX : ROW_MAX)) found.push(`${where} has a row of ${highest} pixels`);
        if (pictures) await page.screenshot({ path: join(pictures, `${name}-${options.limits}-limits-${width}-${scheme}.png`), fullPage: true });
        await page.evaluate(axe);
        violations.push(...violationTexts(where, await page.evaluate(() => window.axe.run({ resultTypes: ['violations'] }))));
      }
    }
    // A long reason is cut, and a click shows all of it.
    await show(page, '#/');
    await page.setViewport({ width: 768, height: 900 });
    await until(page, '.limits .reason summary', /\w/);
    const heights = await page.$eval('.limits .reason', (reason) => {
      const closed = reason.offsetHeight;
      reason.querySelector('summary').click();
      return [closed, reason.offsetHeight];
    });
    assert.ok(heights[1] > heights[0], `${heights}`);
    assert.equal(await page.evaluate(() => location.hash), '#/', 'the click opened no limit');
    await page.close();
  }
  assert.deepEqual(violations, []);
}

// The tasks of a new operator. Each takes at most three clicks from the overview.
async function tasks(found) {
  const page = await open(LIGHT, found);
  await live(page);
  const task = async (name, run) => {
    await show(page, '#/');
    await until(page, '.limits tbody tr', /per_user/);
    clicks = 0;
    await run();
    assert.ok(clicks <= 3, `${name} took ${clicks} clicks`);
    console.log(`${name}: ${clicks} clicks`);
  };
  await task('which limit refuses most, and why', async () => {
    await click(page, 'th button', /^Refused/);
    await click(page, '.limits tbody tr:first-child a');
    await until(page, 'h1', /per_user/);
    await until(page, '[aria-labelledby=insight] p', /\w+\./);
    await until(page, '.callers caption', /Most refused/);
    assert.match((await texts(page, '.callers tbody th'))[0], /^user_id=7$/);
  });
  await task('who fills the global limit', async () => {
    await click(page, '.limits a', /^global$/);
    await until(page, '.callers caption', /^Most allowed by remote_address/);
    await until(page, '.callers tbody tr', /remote_address=198\.51\.100\.1/);
  });
  await task('how to see who fills a limit whose rule does not say it', async () => {
    await click(page, '.limits a', /^search$/);
    await until(page, '[aria-labelledby=insight] p', /^All requests count as one caller here\. To see whose they are, add insight_by: KEY to the rule/);
    assert.equal((await texts(page, '.figures tbody th')).some((text) => /^(Refused callers|Callers)$/.test(text)), false, 'one caller would be a riddle');
  });
  await task('is it one abuser or a crowd', async () => {
    await click(page, '.limits a', /^per_user$/);
    await until(page, '[aria-labelledby=insight] p', /^One caller has \S+ % of the refused units: user_id=7\. Of 2 callers, /);
  });
  // No caller gets so far while the test runs, however long a slow machine needs for it.
  await task('what would 1,000,000 instead of 3 change', async () => {
    await click(page, '.limits a', /^per_user$/);
    await page.waitForSelector('input[name=limit]');
    await page.$eval('input[name=limit]', (input) => { input.value = '1000000'; });
    await click(page, '[aria-labelledby=other] button', /^Try$/);
    await until(page, '[aria-labelledby=other] .said', /^With 1000000 instead of 3, (the one caller|both callers) refused in the last \S+ would not be refused: user_id=7 \(\d+ refused units?\)/);
  });
  await task('why is user 7 refused', async () => {
    await click(page, 'nav a', /^Explain$/);
    await page.waitForSelector('select[name=domain] option');
    await type(page, 'input[name=key]', 'user_id');
    await type(page, 'input[name=value]', '7');
    await click(page, 'form button', /^Explain$/);
    await until(page, '.answer', /^Refused now by per_user \(user_id\)\. Ask again in \d/);
    await until(page, '.step.matched', /user_id=7 any value of this key matches: this is the rule .*rules\.yaml:3/);
    await until(page, '.decision', /refuses per_user .*before0 of 3 left/);
  });
  assert.equal(await check({ remote_address: '203.0.113.9' }), 200);
  await task('block an address for ten minutes', async () => {
    await click(page, 'nav a', /^Block and shadow$/);
    await type(page, 'input[name=key]', 'remote_address');
    await type(page, 'input[name=value]', '203.0.113.9');
    await click(page, 'form button', /^Block$/);
    await until(page, '.outcome.good', /^remote_address=203\.0\.113\.9 is blocked in all domains until (\d+ \w+ \d{4}, )?\d\d:\d\d:\d\d \((9m\d+s|10m)\), on this server only\.$/);
  });
  assert.equal(await check({ remote_address: '203.0.113.9' }), 429);
  await post('/block', { key: 'user_id', value: '8', for: '1h', reason: 'floods' });
  assert.equal(await check({ user_id: '8' }), 429);
  await task('who of the callers of a limit is blocked, since when, until when, and how to end it', async () => {
    await click(page, '.limits a', /^per_user$/);
    await until(page, '.blocks p', /^blocked user_id=8 in all domains, since .*\d\d:\d\d:\d\d\. Left: (59m\d+s|1h) until .*\d\d:\d\d:\d\d\. This server has refused [1-9]\d* requests? because of it\. Reason: floods Unblock/);
    await until(page, '.callers tbody tr', /^user_id=8blocked until .*Unblock/);
    await click(page, '.blocks button', /^Unblock user_id=8$/);
    await until(page, '.outcome.good', /^All blocks of user_id=8 have ended/);
    // The block has gone, although the pointer may still be where its button was.
    await page.mouse.move(0, 0);
    await page.waitForFunction(() => !document.querySelector('.blocks').checkVisibility());
  });
  await task('let it pass again', async () => {
    await click(page, 'nav a', /^Block and shadow$/);
    await click(page, 'td button', /^Unblock remote_address=203\.0\.113\.9 /);
    await until(page, '.outcome.good', /^All blocks of .* have ended/);
  });
  assert.equal(await check({ remote_address: '203.0.113.9' }), 200);
  assert.equal(await check({ banned: 'x' }), 429);
  await task('put a rule into shadow', async () => {
    await click(page, '.limits a', /^nothing$/);
    await complete(page);
    await click(page, 'button', /^Put into shadow$/);
    await until(page, '[aria-labelledby=shadow]', /counts, but refuses nothing, on this server only. Left: (29m\d+s|30m) until (\d+ \w+ \d{4}, )?\d\d:\d\d:\d\d/);
  });
  assert.equal(await check({ banned: 'x' }), 200);
  await task('let the rule refuse again', async () => {
    await until(page, '.limits tr', /^nothingshadow/);
    await click(page, '.limits a', /^nothing$/);
    await complete(page);
    await click(page, 'button', /^End shadow now$/);
    await until(page, 'button', /^Put into shadow$/);
  });
  assert.equal(await check({ banned: 'x' }), 429);
  await page.close();
}

// Uses the forms and switches that `tasks` does not use.
async function forms(found) {
  const page = await open(LIGHT, found, { expected: /status of (400|404)/ });
  await live(page);
  // The page asks before it puts all rules into shadow.
  await show(page, '#/blocks');
  await click(page, 'button', /^Put all rules into shadow$/);
  await click(page, 'dialog button', /^Cancel$/);
  assert.equal(await check({ banned: 'x' }), 429);
  await click(page, 'form button', /^Put all rules into shadow$/);
  await click(page, 'dialog button', /^Put all rules into shadow$/);
  await until(page, '.notice', /All rules are in shadow until/);
  assert.equal(await check({ banned: 'x' }), 200);
  await click(page, 'td button', /^End the shadow of All rules$/);
  await page.waitForFunction(() => !document.querySelector('.notice'));
  assert.equal(await check({ banned: 'x' }), 429);
  // A block in one domain, with a reason. For an entry without a key, the page shows the error of the server.
  await type(page, 'input[name=key]', 'user_id');
  await type(page, 'input[name=value]', '31');
  await type(page, 'input[name=reason]', 'floods');
  await page.select('select[name=domain]', 'dapi');
  await page.select('select[name=for]', '1d');
  await click(page, 'form button', /^Block$/);
  await until(page, 'tbody tr', /^user_id=31floodsapi/);
  assert.equal(await check({ user_id: '31' }), 429);
  await page.evaluate(() => { document.querySelector('input[name=reason]').removeAttribute('maxlength'); });
  await type(page, 'input[name=key]', 'user_id');
  await page.$eval('input[name=reason]', (input) => { input.value = 'x'.repeat(300); });
  await click(page, 'form button', /^Block$/);
  await until(page, '.outcome.bad', /What to do: /);
  // An explanation names the block that refuses a caller, and can unblock, block and reset the caller.
  await show(page, '#/explain/api/user_id/31');
  await until(page, '.answer', /^Refused now by a block: user_id=31/);
  await until(page, '.answered', /^Answer of \d\d:\d\d:\d\d, \d+m?\d*s ago\./);
  await until(page, '.decision', /^not asked per_user .*Not asked, because the request is refused by a block\.$/);
  await until(page, '#answer .blocked', /^blocked user_id=31 in the domain api, since .* until .*\. This server has refused 1 request because of it\. Reason: floods Unblock/);
  // The time that is left changes each second. The button behind it stays where it is, so that a click does not miss it.
  const places = await page.$eval('#answer [data-until]', (node) => ['23h59m', '9s', ''].map((text) => {
    node.textContent = text;
    const { x, y } = document.querySelector('#answer .blocked button').getBoundingClientRect();
    return `${x} ${y}`;
  }));
  assert.equal(new Set(places).size, 1, places.join('; '));
  await click(page, '#answer button', /^Unblock/);
  await until(page, '.outcome.good', /^The block of .* in the domain api has ended/);
  for (let at = 0; at < 4; at += 1) await check({ user_id: '31' });
  await click(page, 'form button', /^Explain$/);
  await until(page, '.answer', /^Refused now by per_user/);
  await click(page, '#answer button', /^Reset its counters$/);
  await until(page, '.outcome.good', /^All units are there again: /);
  // The explanation changes after the action.
  await until(page, '.answer', /^Allowed now/);
  await click(page, '#answer button', /^Block user_id=31 for 10 min$/);
  await until(page, '.outcome.good', /user_id=31 is blocked/);
  await until(page, '.answer', /^Refused now by a block: user_id=31/);
  assert.equal((await texts(page, '#answer button')).some((text) => text.startsWith('Block')), false);
  // The tile of blocks says how much they refuse, and links to their list.
  await check({ user_id: '31' });
  await show(page, '#/');
  await until(page, '.tile', /^Blocks ?\d blocks? ?\S+ \/ s are refused by blocks\.$/);
  await page.$eval('.tile a[href="#/blocks"]', (link) => link.click());
  await until(page, 'h1', /^Block and shadow$/);
  // An explanation of two entries, and of a path without a limit.
  await show(page, '#/explain');
  await page.waitForSelector('select[name=domain] option');
  await click(page, 'button', /Another entry/);
  await page.evaluate(() => [...document.querySelectorAll('.entry input')].forEach((input, at) => { input.value = ['path', '/login', 'remote_address', '192.0.2.1'][at]; }));
  await click(page, 'form button', /^Explain$/);
  await until(page, '.step.level1.matched', /remote_address=192\.0\.2\.1/);
  assert.match(await page.evaluate(() => location.hash), /^#\/explain\/api\/path\/%2Flogin\/remote_address\/192\.0\.2\.1$/);
  await click(page, '.entry:nth-child(2) button');
  await click(page, 'form button', /^Explain$/);
  await until(page, '.rule', /no limit of its own/);
  await wholeRequests(page);
  // Search and order of the overview.
  await show(page, '#/');
  await type(page, '#search', 'login');
  await page.waitForFunction(() => [...document.querySelectorAll('.limits tbody tr')].filter((row) => row.checkVisibility()).length === 1);
  await page.$eval('#search', (input) => { input.value = ''; input.dispatchEvent(new Event('input')); });
  await click(page, 'th button', /^Limit$/);
  const names = await texts(page, '.limits tbody th a');
  assert.deepEqual(names, [...names].sort((a, b) => a.localeCompare(b)));
  await callers(page);
  await suggestion(page);
  await keyboard(page);
  await page.close();
}

// A request of several descriptors, typed and pasted, and all limits of a caller.
async function wholeRequests(page) {
  for (let at = 0; at < 4; at += 1) await check({ user_id: '55' });
  const fill = (values) => page.evaluate((values) => [...document.querySelectorAll('.entry input')].forEach((input, at) => { input.value = values[at]; }), values);
  await show(page, '#/explain');
  await page.waitForSelector('select[name=domain] option');
  // Two entries of one descriptor match no rule. A limit refuses the caller nevertheless, and the page says so.
  await click(page, 'button', /Another entry/);
  await fill(['user_id', '55', 'remote_address', '192.0.2.9']);
  await click(page, 'form button', /^Explain$/);
  await until(page, '.answer.bad', /^No rule matches the request as it is typed, but 1 limit of its values refuses now$/);
  await until(page, '#answer p', /these keys, in this order: .*user_id, .*path=\/login > remote_address/);
  await until(page, '[aria-labelledby=others] tbody tr', /^per_user.*user_id=553 of 30for /);
  assert.equal(await page.$('.answer.good'), null);
  await click(page, '#answer button', /^Try each entry as a descriptor of its own$/);
  await until(page, '.answer.bad', /^Refused now by per_user \(user_id\)\. Ask again in /);
  assert.match(await page.evaluate(() => location.hash), /^#\/explain\/api\/user_id\/55\/\/remote_address\/192\.0\.2\.9$/);
  // The address leads to the same request.
  await page.reload();
  await until(page, '.answer.bad', /^Refused now by per_user/);
  assert.equal((await page.$$('fieldset')).length, 2);
  // A pasted request fills the form.
  const paste = async (request) => {
    await page.$eval('input[name=request]', (input) => { input.value = ''; });
    await type(page, 'input[name=request]', request);
    await click(page, 'form button', /^Explain this JSON$/);
  };
  await paste('{"domain": "api", "descriptors": [{"entries": [{"key": "banned", "value": "x"}]}, {"entries": [{"key": "report", "value": "r"}]}]}');
  await until(page, '.answer.bad', /^Refused now by nothing \(banned\)/);
  assert.deepEqual(await page.$$eval('.entry input', (inputs) => inputs.map((input) => input.value)), ['banned', 'x', 'report', 'r']);
  await paste('{"domain": "api"}');
  await until(page, '.outcome.bad', /missing field `descriptors`/);
  // Nothing matches and nothing refuses.
  await paste('{"domain": "api", "descriptors": [{"unheard": "x"}]}');
  await until(page, '.answer.warn', /^No limit and no block matches this request, so it passes$/);
  // Everything about a caller.
  await type(page, 'input[name=caller]', 'user_id=55');
  await click(page, 'form button', /^Show its limits$/);
  await until(page, 'h3.answer.bad', /^Refused now by 1 limit$/);
  await click(page, '[aria-labelledby=caller] td button', /^Reset/);
  await until(page, 'h3.answer', /^Nothing (refuses this caller|with these values refuses) now/);
  await post('/block', { key: 'user_id', value: '55', for: '1h' });
  assert.equal(await check({ user_id: '55' }), 429);
  await click(page, 'form button', /^Show its limits$/);
  await until(page, 'h3.answer.bad', /^Refused now by 1 block$/);
  await show(page, '#/blocks');
  await until(page, 'tbody tr', /^user_id=55all domains.*1Unblock/);
  // The rules come after the view. The focus stays in a field in which somebody types already.
  await page.evaluate(() => new Promise((done) => {
    addEventListener('hashchange', () => done(document.querySelector('input[name=caller]').focus()), { once: true });
    location.hash = '#/explain';
  }));
  await page.waitForSelector('select[name=domain] option');
  assert.equal(await page.evaluate(() => document.activeElement.name), 'caller');
  await type(page, 'input[name=caller]', '55');
  await click(page, 'form button', /^Show its limits$/);
  await until(page, '[aria-labelledby=caller] .blocked', /This server has refused 1 request because of it\./);
  await click(page, '[aria-labelledby=caller] p button', /^Unblock/);
  await until(page, 'h3.answer', /^(No block has these values, and they have used nothing of \d+ limits now|Nothing with these values refuses now, .*)$/);
  // A misspelt key is named. Limits that all callers share are listed apart.
  await page.$eval('input[name=caller]', (input) => { input.value = ''; });
  await type(page, 'input[name=caller]', 'user_i=55');
  await click(page, 'form button', /^Show its limits$/);
  await until(page, '[aria-labelledby=caller] p.warn', /^No rule has the key `user_i`: did you mean `user_id`\?$/);
  await until(page, '[aria-labelledby=caller] table', /^Limits that all callers share, .*global api: all=requests, shared by all callers/);
  // A value with a * is the wildcard of a rule. A block on it would refuse nobody.
  await paste('{"domain": "api", "descriptors": [{"user_id": "5*"}]}');
  await until(page, '.answer', /^Allowed now/);
  assert.equal((await texts(page, '#answer button')).some((text) => text.startsWith('Block')), false);
  await page.evaluate(axe);
  assert.deepEqual(violationTexts('explain', await page.evaluate(() => window.axe.run({ resultTypes: ['violations'] }))), []);
}

// Reloads until the test has changed the files, and an element shows the result.
async function reloadUntil(page, selector) {
  for (let at = 0; at < 50 && !(await page.$(selector)); at += 1) {
    await click(page, 'button', /^Reload now$/);
    await page.waitForFunction(() => ![...document.querySelectorAll('main button')].some((button) => button.getAttribute('aria-disabled') === 'true'));
  }
}

// Reloads the rules from the page, and shows names of callers after that.
async function reloading(found) {
  const page = await open(LIGHT, found, { expected: /status of (422|404)/ });
  await live(page);
  // Only hashes are known. The page finds out who it is while the caller asks.
  await show(page, '#/limit/api/user_id/0');
  await until(page, '.callers tbody th', /^hash [0-9a-f]{16}$/);
  await click(page, '.callers a', /^Explain the caller/);
  await until(page, '.answer', /^Refused now by per_user \(user_id\)/);
  assert.deepEqual(await page.$$eval('.entry input', (inputs) => inputs.map((input) => input.value)), ['user_id', '7']);
  await show(page, '#/limit/api/user_id/0');
  await click(page, '.callers button', /^Block for 10 min the caller/);
  await until(page, '.outcome.good', /^user_id=7 is blocked/);
  await show(page, '#/reloads');
  await click(page, 'button', /^Reload now$/);
  await until(page, '.outcome.good', /Nothing has changed/);
  console.log('break the rules');
  await reloadUntil(page, '.outcome.bad');
  await until(page, '.outcome.bad', /^The rules were not reloaded\. The earlier rules stay in use\. What to do: correct the errors below in the files, and reload again\.$/);
  await until(page, 'article strong', /unknown key `ky`|did you mean|ky/);
  await until(page, 'article p', /rules\.yaml:\d+:\d+/);
  await page.evaluate(axe);
  assert.deepEqual(violationTexts('reloads', await page.evaluate(() => window.axe.run({ resultTypes: ['violations'] }))), []);
  console.log('repair the rules');
  await reloadUntil(page, 'li.changed');
  await until(page, '.outcome.good', /^The server uses what it has read\.$/);
  // Of the reloads that have loaded rules, only the newest one is in use.
  await until(page, '.badge', /^replaced by the reload of \d/);
  assert.equal((await texts(page, '.badge')).filter((text) => text === 'in use').length, 1);
  await until(page, 'li.changed', /setting insight\.keys changed: hashedplain/);
  await until(page, 'li.changed', /3 per hour.*30 per hour/);
  await page.close();
}

async function callers(page) {
  await show(page, '#/limit/api/user_id/0');
  await until(page, '.callers tbody tr', /user_id=7/);
  await until(page, '[aria-labelledby=rule] code', /rules\.yaml:3$/);
  assert.deepEqual(await texts(page, '[aria-labelledby=rule] pre'), ['- key: user_id\n  rate_limit: {name: per_user, unit: hour, requests_per_unit: 3, algorithm: token_bucket, burst: 3}']);
  await click(page, '.callers button', /^Block user_id=7 for 10 min$/);
  await until(page, '.outcome.good', /^user_id=7 is blocked in the domain api/);
  await click(page, '.callers button', /^Reset user_id=7$/);
  await until(page, '.outcome.good', /units are there again|nothing to reset/);
  await click(page, '.callers a', /^Explain user_id=7$/);
  await until(page, '.answer', /block: user_id=7/);
  await click(page, '#answer button', /^Unblock/);
  await until(page, '.outcome.good', /^The block of user_id=7 in the domain api has ended/);
}

// Insight needs minutes of traffic until it suggests a limit. So the test adds a suggestion to the answer of the server.
async function suggestion(page) {
  const yaml = 'domain: "api"\ndescriptors: []\n';
  await page.setRequestInterception(true);
  const change = async (request) => {
    if (!request.url().includes('/insight')) return request.continue();
    const answer = await (await fetch(request.url())).json();
    answer.limits.forEach((limit) => Object.assign(limit, { verdict: 'bursts', suggested_rules: yaml }));
    return request.respond({ contentType: 'application/json', body: JSON.stringify(answer) });
  };
  page.on('request', change);
  await browser.defaultBrowserContext().overridePermissions(admin, ['clipboard-read', 'clipboard-write', 'clipboard-sanitized-write']);
  await show(page, '#/limit/api/path%3D%2Flogin%20%3E%20remote_address/0');
  await click(page, 'button', /^Copy$/);
  await until(page, '.outcome.good', /^Copied/);
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), yaml);
  // A page that comes over HTTP from another machine has no clipboard API. The test removes the API to get this case.
  await page.evaluate(() => {
    Object.defineProperty(navigator, 'clipboard', { value: undefined });
    document.addEventListener('copy', () => { window.copied = String(getSelection()); });
  });
  await click(page, 'button', /^Copy$/);
  await page.waitForFunction((yaml) => window.copied?.trim() === yaml.trim(), {}, yaml);
  page.off('request', change);
  await page.setRequestInterception(false);
}

// The whole page can be used without a mouse, and the back button works.
async function keyboard(page) {
  await page.goto(`${admin}/#/`);
  await page.reload();
  await live(page);
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to the content');
  await page.keyboard.press('Enter');
  for (let at = 0; at < 20 && !(await page.evaluate(() => document.activeElement.matches('.limits tbody a'))); at += 1) await page.keyboard.press('Tab');
  const name = await page.evaluate(() => document.activeElement.textContent);
  await page.keyboard.press('Enter');
  await until(page, 'h1', new RegExp(`^${name}`));
  assert.equal(await page.evaluate(() => document.activeElement.localName), 'h1');
  await page.goBack();
  await until(page, '.limits tbody tr', /per_user/);
}

// Every total on the page is equal to the total in /metrics.
async function figures(found) {
  const metrics = await (await fetch(`${admin}/metrics`)).text();
  const expected = new Map();
  for (const [, kind, labels, number] of metrics.matchAll(/^spillgate_limit_(hits|near)_total\{(.*)\} (\d+)$/gm)) {
    const label = Object.fromEntries([...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]));
    const key = `${label.domain} ${label.rule} ${label.limit}`;
    expected.set(key, { ...expected.get(key), [label.outcome ?? kind]: Number(number) });
  }
  const page = await open(LIGHT, found);
  await live(page);
  const links = await page.$$eval('.limits tbody a', (nodes) => nodes.map((node) => [node.textContent, node.getAttribute('href'), node.title]));
  assert.equal(links.length, expected.size);
  const { limits } = await (await fetch(`${admin}/overview`)).json();
  const number = (text) => Number(text.replaceAll(',', ''));
  for (const [name, hash, title] of links) {
    const [, , domain, rule, at] = hash.split('/').map(decodeURIComponent);
    const { label } = limits.filter((one) => one.domain === domain && one.rule === rule)[at];
    const of = expected.get(`${domain} ${rule} ${label}`);
    assert.ok(of, `${domain} ${rule} ${label}`);
    assert.ok(title.startsWith(`${domain}: ${rule} · `), title);
    // Many limits without a name can have one size, so each has the path of its rule as its title.
    assert.ok(name === label || name === rule, `${name} ${label}`);
    await show(page, hash);
    await until(page, 'h1', new RegExp(`^${name}`));
    await until(page, '[aria-labelledby=rule] p', /^Counted so far/);
    const [, allowed, refused, shadow, near] = /: ([\d,]+) hits? allowed, ([\d,]+) refused, (?:([\d,]+) over the limit in shadow, )?([\d,]+) near/.exec((await texts(page, '[aria-labelledby=rule] p')).join(' '));
    assert.deepEqual([allowed, refused, shadow ?? '0', near].map(number), [of.allowed + of.soft_over, of.refused, of.shadow_refused, of.near], `${name}`);
  }
  const total = [...expected.values()].reduce((sum, of) => sum + of.allowed + of.refused, 0);
  assert.ok(total > 100, `only ${total} hits`);
  await page.close();
}

// Hostile texts are shown as text, even without the security policy of the page.
async function hostile(found) {
  const page = await open(LIGHT, found, { withoutPolicy: true, expected: /status of 404/ });
  await live(page);
  const { name, key, rule, value } = options.hostile;
  await until(page, '.limits tbody a', /<script>/);
  assert.ok((await texts(page, '.limits tbody a')).includes(name));
  await show(page, `#/limit/${['hostile', rule, 0].map(encodeURIComponent).join('/')}`);
  await until(page, '.callers tbody th', /<img/);
  assert.ok((await textOf(page, 'h1')).startsWith(name));
  assert.ok((await textOf(page, '[aria-labelledby=rule] pre')).includes(name));
  await show(page, `#/explain/${['hostile', key, value].map(encodeURIComponent).join('/')}`);
  await until(page, '.answer', /now/);
  await click(page, '#answer button', /^Block/);
  await until(page, '.outcome.good', /is blocked/);
  await show(page, '#/blocks');
  await until(page, 'tbody th', /<img/);
  await show(page, '#/reloads');
  await until(page, 'li.added', /<script>/);
  for (const hash of [`#/limit/${encodeURIComponent(value)}/x/0`, `#/${encodeURIComponent(value)}`, '#/limit/%/%E0/0', '#/explain/%3Cb%3E/__proto__/constructor', '#/__proto__', '#/constructor']) {
    await show(page, hash);
    await page.waitForFunction(() => document.querySelector('main h1'));
  }
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.$('main img, main script, main iframe'), null);
  await page.close();
}

// The server goes away and comes back.
async function away(found) {
  const page = await open(LIGHT, found, { expected: /ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|ERR_NETWORK/ });
  await live(page);
  assert.equal(await page.$('.notice'), null);
  const before = await textOf(page, 'footer');
  console.log('stop');
  await until(page, '.notice.bad', /^No data since (\d+ \w+ \d{4}, )?\d\d:\d\d:\d\d, \d+s\. All figures are old\. /);
  await until(page, '#live', /^No data since/);
  await page.waitForSelector('main.stale');
  if (pictures) await page.screenshot({ path: join(pictures, 'away-light.png'), fullPage: true });
  console.log('start');
  await live(page);
  await page.waitForSelector('main:not(.stale)');
  assert.equal(await page.$('.notice'), null);
  await page.waitForFunction((before) => document.querySelector('footer').textContent !== before, {}, before);
  const rates = await texts(page, '.limits .number');
  assert.ok(rates.length > 0 && rates.every((rate) => !rate.includes('-')), `${rates}`);
  await page.close();
}

// The page asks for a token when the server does, and sends it only in a header.
async function tokens(found) {
  const page = await open(LIGHT, found, { expected: /status of (401|403)/ });
  const addresses = [];
  page.on('request', (request) => addresses.push(request.url()));
  const enter = async (token) => {
    await until(page, 'dialog h2', /needs a token/);
    await type(page, 'dialog input', token);
    await page.keyboard.press('Enter');
  };
  await until(page, 'dialog h2', /needs a token/);
  await page.evaluate(axe);
  assert.deepEqual(violationTexts('token', await page.evaluate(() => window.axe.run({ resultTypes: ['violations'] }))), []);
  if (pictures) await page.screenshot({ path: join(pictures, 'token-light.png') });
  await enter('wrong');
  await until(page, 'dialog p', /^This token is wrong/);
  await enter(options.read);
  await live(page);
  await show(page, '#/blocks');
  await type(page, 'input[name=key]', 'user_id');
  await type(page, 'input[name=value]', '1');
  await click(page, 'form button', /^Block$/);
  await until(page, '.outcome.bad', /^Your token may only read\./);
  await page.reload();
  await live(page);
  await click(page, 'button', /^Forget token$/);
  await enter(options.write);
  await live(page);
  await show(page, '#/blocks');
  await type(page, 'input[name=key]', 'user_id');
  await type(page, 'input[name=value]', '1');
  await click(page, 'form button', /^Block$/);
  await until(page, '.outcome.good', /^user_id=1 is blocked/);
  assert.ok(addresses.every((address) => !address.includes(options.read) && !address.includes(options.write)));
  assert.equal(await page.evaluate(() => JSON.stringify([{ ...localStorage }, document.cookie])), '[{},""]');
  await page.close();
}

const PARTS = { book, views, fits, tasks, forms, reloading, figures, hostile, away, tokens };
try {
  const found = [];
  await PARTS[part](found);
  assert.deepEqual(found, []);
} finally {
  await close();
}
