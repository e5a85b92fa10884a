// Tests the page of the admin listener in headless Chromium in situations that just happen: many tabs, late answers, a list that
// changes under the pointer.
//
//   node page_state.mjs TOOLS CHROMIUM PART OPTIONS
//
// The arguments are those of page.mjs.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { resolve } from 'node:path';

import { DEADLINE_MS, launch } from './launch.mjs';

// Browsers have this many connections to one server over HTTP/1.1.
const CONNECTIONS = 6;

const [tools, chromium, part, text] = process.argv.slice(2);
const options = JSON.parse(text);
const { admin } = options;
const { browser, close } = await launch(resolve(tools), chromium, true);

async function open(prepare) {
  const page = await browser.newPage();
  page.setDefaultTimeout(DEADLINE_MS);
  if (prepare) await page.evaluateOnNewDocument(prepare);
  await page.goto(`${admin}/`, { waitUntil: 'load', timeout: DEADLINE_MS });
  return page;
}

// Waits until an element that can be seen has this text.
async function until(page, selector, wanted) {
  const seen = (selector, source) => [...document.querySelectorAll(selector)].some((node) => node.checkVisibility() && new RegExp(source).test(node.textContent));
  await page.waitForFunction(seen, { polling: 50 }, selector, wanted.source);
}

const live = (page) => until(page, '#live', /^Live /);
const textsOf = (page, selector) => page.$$eval(selector, (nodes) => nodes.map((node) => node.textContent));

async function post(path, body) {
  const headers = { 'X-Spillgate-Admin': '1' };
  const answer = await fetch(`${admin}${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
  assert.equal(answer.status, 200);
}

// A browser opens only a few connections to a server. If hidden tabs kept theirs, a new tab would get none.
async function tabs() {
  const pages = [];
  for (let at = 0; at < CONNECTIONS + 2; at += 1) {
    pages.push(await open());
    await live(pages[at]);
  }
  const status = await pages.at(-1).evaluate(async () => (await fetch('/blocks')).status);
  assert.equal(status, 200);
  await pages[0].evaluate(() => {
    window.alarms = 0;
    new MutationObserver(() => { window.alarms += document.querySelectorAll('.notice').length; }).observe(document.getElementById('notices'), { childList: true });
  });
  const before = await pages[0].$eval('#live', (node) => node.textContent);
  await pages[0].bringToFront();
  await pages[0].waitForFunction((before) => document.getElementById('live').textContent !== before, { polling: 50 }, before);
  await live(pages[0]);
  assert.equal(await pages[0].evaluate(() => window.alarms), 0, 'a tab that is shown again is no alarm');
}

// A rate is computed from the last seconds, even if ticks are missing and overviews come late.
async function rates() {
  const page = await open();
  await live(page);
  const seen = await page.evaluate(async () => {
    // Because of the query, the browser loads a second copy of the module. So the test does not touch the state of the page.
    const { state, take, takeTick, rateOf, changed } = await import('/ui/state.js?alone');
    const { share } = await import('/ui/format.js');
    const none = { refused: 0, near: 0, shadow_refused: 0, soft_over: 0 };
    const steps = () => Object.fromEntries(['allowed', ...Object.keys(none), 'wait_ms'].map((name) => [name, [70]]));
    const limit = (allowed) => ({ domain: 'd', rule: 'r', name: 'n', options: {}, allowed, ...none, history: steps() });
    const requests = { allowed: 0, refused: 0, errors: 0, history: {} };
    const overview = (at_ms, allowed, id = 'first') => take({ at_ms, changes: 0, step_ms: 10_000, server: { id }, requests, limits: [limit(allowed)] });
    const tick = (second, ...limits) => takeTick({ at_ms: second * 1000, changes: 0, requests, limits });
    const rate = () => rateOf(state.limits[0], 'allowed');
    const found = {};
    state.connection = 'live';
    overview(1_000, 0);
    for (let second = 2; second <= 11; second += 1) tick(second, [0, (second - 1) * 100, 0, 0, 0, 0]);
    found.steady = rate();
    for (let second = 12; second <= 17; second += 1) tick(second);
    found.stopped = rate();
    overview(16_900, 900);
    found.afterLateOverview = rate();
    found.clock = state.at_ms;
    for (let second = 18; second <= 40; second += 1) tick(second);
    overview(39_900, 1_050);
    found.lateCount = state.limits[0].totals.allowed.value;
    tick(41, [0, 1_600, 0, 0, 0, 0]);
    found.burst = rate();
    state.connection = 'starting';
    overview(641_000, 60_000);
    found.afterGap = rate();
    overview(642_000, 5, 'second');
    overview(644_000, 25, 'second');
    found.afterRestart = rate();
    await new Promise((done) => setTimeout(done, 100));
    Object.assign(state, { blocks: { blocks: [1, 60_000].map((ms) => ({ until_ms: state.at_ms + ms })) }, shadows: { all: { until_ms: state.at_ms + 1 }, rules: [] } });
    changed();
    await new Promise((done) => setTimeout(done, 1_000));
    found.ended = [state.blocks.blocks.length, state.shadows.all];
    found.shares = [[0, 5], [1, 100_000], [1, 3], [199, 2_000], [996, 1_000], [99_999, 100_000], [5, 5]].map(([part, whole]) => share(part, whole));
    return found;
  });
  assert.equal(seen.steady, 100);
  assert.equal(seen.stopped, 0, 'nothing was allowed in the last five seconds');
  assert.equal(seen.afterLateOverview, 0, 'an overview that is older than the last tick changes no rate');
  assert.equal(seen.clock, 17_000, 'nor the clock');
  assert.equal(seen.lateCount, 1_050, 'but what it has counted is not lost');
  assert.ok(seen.burst >= 100 && seen.burst <= 120, `600 in the last five or six seconds are not ${seen.burst} a second`);
  assert.equal(seen.afterGap, 7, 'after a gap, the rate is that of the last step');
  assert.equal(seen.afterRestart, 10, 'the counters of another process begin again');
  assert.deepEqual(seen.ended, [1, null], 'what has ended is not shown');
  assert.deepEqual(seen.shares, ['0 %', '< 0.1 %', '33 %', '10 %', '99.6 %', '> 99.9 %', '100 %']);
}

// An update of a list does not move another button under the pointer.
async function lists() {
  await post('/block', { key: 'user_id', value: 'first', for: '1h' });
  const page = await open();
  await live(page);
  await page.evaluate(() => { location.hash = '#/blocks'; });
  await until(page, 'tbody tr', /user_id=first/);
  const button = await page.$('tbody button');
  await button.hover();
  await post('/block', { key: 'user_id', value: 'second', for: '1h' });
  await until(page, 'p', /^2 blocks of at most/);
  assert.deepEqual(await textsOf(page, 'tbody code'), ['user_id=first']);
  await button.click();
  await until(page, '.outcome.good', /^All blocks of user_id=first have ended: 1/);
  // The row goes at once. The next row comes when the pointer has left, so that no second click meets it.
  await page.waitForSelector('tbody tr.gone');
  assert.deepEqual(await textsOf(page, 'tbody code, tbody button'), []);
  await page.mouse.move(0, 0);
  await until(page, 'tbody tr', /user_id=second/);
  assert.deepEqual(await textsOf(page, 'tbody code'), ['user_id=second']);
  // A block on a key that no limit has may be a mistake, so the page says so.
  await page.type('input[name=key]', ' ip ');
  await page.type('input[name=value]', '203.0.113.9 ');
  await page.click('form button.main');
  await until(page, '.outcome.good', /^ip=203\.0\.113\.9 is blocked .* No limit has the key ip: check that requests have it\.$/);
  // After Escape in the dialog, the button that opened the dialog has the focus again.
  const all = /^Put all rules into shadow$/;
  await page.evaluate((source) => [...document.querySelectorAll('form button')].find((node) => new RegExp(source).test(node.textContent)).focus(), all.source);
  await page.keyboard.press('Enter');
  await until(page, 'dialog h2', /^Refuse nothing/);
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => !document.querySelector('dialog'));
  assert.match(await page.evaluate(() => document.activeElement.textContent), all);
}

// What an operator has ended goes from its list, although the pointer or the focus stays where the button was.
async function ended() {
  const page = await open();
  await live(page);
  await page.evaluate(() => { location.hash = '#/blocks'; });
  for (const way of ['pointer', 'keyboard']) {
    await post('/shadow', { rule: { domain: 'api', path: 'upload' }, on: true, for: '1h' });
    await post('/block', { key: 'user_id', value: '1', for: '1h' });
    for (const list of ['shadows', 'blocked']) {
      const selector = `[aria-labelledby=${list}] tbody button`;
      await page.waitForSelector(selector);
      if (way === 'pointer') {
        await page.click(selector);
      } else {
        await page.focus(selector);
        await page.keyboard.press('Enter');
      }
      await page.waitForFunction((list) => !document.querySelector(`[aria-labelledby=${list}] tbody`), { polling: 50 }, list);
      await until(page, `[aria-labelledby=${list}] p`, list === 'shadows' ? /^No rule was put into shadow\.$/ : /^No caller is blocked\.$/);
      if (way === 'keyboard') assert.match(await page.evaluate(() => document.activeElement.textContent), /^(Rules in shadow|Blocked now)$/);
    }
  }
}

// A key or a value with a sign of paths is in quotes, and every part of the page reads it as it was meant.
async function paths() {
  const page = await open();
  await live(page);
  const read = await page.evaluate(async () => {
    const { pathEntries, entryText } = await import('/ui/format.js');
    const odd = ['a', 'a=b', '=', '>', ' >', '> ', ' > ', 'a > b', '"', '"a"', 'a"', '\\', 'a\\"=', ' '];
    const steps = odd.flatMap((key) => odd.map((value) => [key, value]));
    const wrong = [];
    for (const first of steps) {
      for (const second of steps) {
        const text = [first, second].map((step) => entryText(...step)).join(' > ');
        if (JSON.stringify(pathEntries(text)) !== JSON.stringify([first, second])) wrong.push(text);
      }
    }
    return [wrong, pathEntries('user_id=vip* > "a=b" > path')];
  });
  assert.deepEqual(read, [[], [['user_id', 'vip*'], ['a=b', null], ['path', null]]]);
  for (const [name, path, asked] of [['whole', '"a=b"', ['a=b', '']], ['pair', 'a=b', ['a', 'b']], ['value', 'c="d > e"', ['c', 'd > e']], ['nested', 'c=d > e', ['c', 'd', 'e', '']]]) {
    await page.evaluate(() => { location.hash = '#/'; });
    await until(page, '.limits a', new RegExp(`^${name}$`));
    const title = await page.$$eval('.limits a', (links, name) => links.find((link) => link.textContent === name).title, name);
    assert.ok(title.startsWith(`odd: ${path} · `), title);
    await page.$$eval('.limits a', (links, name) => links.find((link) => link.textContent === name).click(), name);
    await until(page, 'h1', new RegExp(`^${name}`));
    await page.$eval('[aria-labelledby=rule] a', (link) => link.click());
    await page.waitForSelector('.entry input');
    const entries = await page.$$eval('.entry input', (inputs) => inputs.map((input) => input.value));
    assert.deepEqual(entries, asked);
  }
  // The actions of a caller know its entry.
  await page.evaluate(() => { location.hash = '#/limit/odd/%22a%3Db%22/0'; });
  await until(page, '.callers button', /^Block "a=b"=x=y for 10 min$/);
  await page.$$eval('.callers button', (buttons) => buttons.find((button) => /^Block "a=b"=x=y/.test(button.textContent)).click());
  await until(page, '.outcome.good', /^"a=b"=x=y is blocked in the domain odd/);
  const { blocks } = await (await fetch(`${admin}/blocks`)).json();
  assert.deepEqual(blocks.map(({ key, value }) => [key, value]), [['a=b', 'x=y']]);
  await until(page, '.blocks code', /^"a=b"=x=y$/);
  await page.evaluate(() => { location.hash = '#/limit/odd/a%3Db/0'; });
  await until(page, 'h1', /^pair/);
  assert.equal(await page.$eval('.blocks', (node) => node.checkVisibility()), false, 'the block is on another key');
}

// The page shows the error of a request that failed, and sends the request again.
async function failures() {
  const page = await open();
  await live(page);
  let failing = /\/(overview|rules|reloads)$/;
  let held = null;
  let version = null;
  await page.setRequestInterception(true);
  page.on('request', async (request) => {
    if (version && request.url().endsWith('/overview')) {
      const overview = await (await fetch(request.url())).json();
      overview.server.version = version;
      return request.respond({ contentType: 'application/json', body: JSON.stringify(overview) });
    }
    if (held && request.url().endsWith('/rules')) return held.push(request);
    if (!failing.test(request.url())) return request.continue();
    return request.respond({ status: 503, contentType: 'application/problem+json', body: JSON.stringify({ detail: 'busy for a test', help: 'wait' }) });
  });
  await until(page, '.notice.warn', /^Charts, verdicts, blocks and shadows may be old: busy for a test$/);
  await live(page);
  failing = /\/(rules|reloads)$/;
  await page.waitForFunction(() => !document.querySelector('.notice'));
  await page.evaluate(() => { location.hash = '#/explain'; });
  await until(page, '.outcome.bad', /^busy for a test/);
  failing = /\/reloads$/;
  await page.waitForSelector('select[name=domain] option');
  await page.waitForFunction(() => !document.querySelector('.outcome.bad'));
  await page.evaluate(() => { location.hash = '#/reloads'; });
  await until(page, '.outcome.bad', /^busy for a test/);
  failing = /^$/;
  await until(page, '.list', /No file has changed/);
  // If the user has left the view for which a request was sent, its answer is ignored.
  const complaints = [];
  page.on('console', (message) => complaints.push(message.text()));
  held = [];
  await page.evaluate(() => { location.hash = '#/explain/api/user_id/7'; });
  while (held.length === 0) await new Promise((done) => setTimeout(done, 20));
  await page.evaluate(() => { location.hash = '#/blocks'; });
  await until(page, 'h1', /^Block and shadow$/);
  const asked = page.waitForResponse(`${admin}/rules`);
  held.splice(0).forEach((request) => request.continue());
  await asked;
  await new Promise((done) => setTimeout(done, 300));
  assert.deepEqual(complaints, []);
  // After an update of the server, the page still has the old scripts. So it asks the user to load it again.
  assert.equal(await page.$('.notice'), null);
  version = '99.0.0';
  await until(page, '.notice.warn', /another version now: load this page again/);
}

// The view of a limit follows its rule through reloads. The Rust test reloads the rules when it reads a line that this
// function prints.
async function reloaded() {
  const page = await open();
  await live(page);
  await page.evaluate(() => { location.hash = '#/limit/api/user_id/0'; });
  await until(page, '[aria-labelledby=rule] pre', /^- key: user_id/);
  // The text of the rule is updated at once, although a button of a caller is under the pointer.
  await (await page.waitForSelector('.callers .actions button')).hover();
  console.log('change a comment');
  await until(page, '[aria-labelledby=rule] pre', /^# changed\n- key: user_id/);
  await until(page, '.lede', /refused/);
  console.log('remove the rule');
  await until(page, 'p', /^The rules have no such limit now/);
  await page.waitForFunction(() => ![...document.querySelectorAll('.lede, .badges, .columns')].some((node) => node.checkVisibility()));
  // The insight is shown although the text of the rule cannot be read.
  await page.setRequestInterception(true);
  page.on('request', (request) => (request.url().includes('/rules?') ? request.respond({ status: 503, contentType: 'application/problem+json', body: '{"detail":"busy for a test"}' }) : request.continue()));
  await page.evaluate(() => { location.hash = '#/limit/api/path%3D%2Fsearch/0'; });
  await until(page, '.outcome.bad', /^busy for a test/);
  await until(page, '[aria-labelledby=insight] p', /verdict/i);
}

// The page must not say that a rule in shadow refuses requests.
async function shadowed() {
  const page = await open();
  await live(page);
  await until(page, '.limits td:nth-child(3)', /[1-9].*would refuse$/);
  await until(page, '.limits td:nth-child(5)', /[1-9].* %would refuse$/);
  await until(page, '.tile', /^Shadow1 limitThe rules file says so\.$/);
  await post('/shadow', { rule: { domain: 'quiet', path: 'path=/search' }, on: true, for: '1h' });
  await until(page, '.tile', /^Shadow2 limits1 rule for a time/);
  await post('/shadow', { rule: { domain: 'quiet', path: 'path=/search' }, on: false });
  assert.equal(await page.$('.limits .over'), null, 'only refusals are red');
  assert.doesNotMatch((await textsOf(page, '.lede > span:not([hidden])')).join(''), /Most refusals/);
  await page.evaluate(() => { location.hash = '#/limit/quiet/report/0'; });
  await until(page, '.view > .lede', /^Now .+ \/ s allowed, [1-9].* \/ s \(.+ %\) would be refused\. In shadow, this limit refuses nothing\.$/);
  await until(page, '.callers caption', /^Most that it would refuse, since/);
  await until(page, '[aria-labelledby=insight] p', /^One caller has 100 % of the units that it would refuse: report=monthly\. Of 1 caller, 1 would be refused at least once\.$/);
  await until(page, '.figures th', /^Requests over the limit in shadow$/);
  await until(page, '.key:not([hidden])', /^over the limit in shadow$/);
  const said = await page.$eval('main', (node) => node.innerText);
  assert.doesNotMatch(said, /refused requests|most refused|share refused|refused callers/i, said);
  await until(page, '[aria-labelledby=shadow]', /This rule has shadow_mode in its file and refuses nothing\./);
  await page.evaluate(() => { location.hash = '#/explain/quiet/report/monthly'; });
  await until(page, '.answer', /^Allowed now$/);
  await until(page, '.decision .badge', /^would refuse$/);
  // All callers of this rule have the value that the rule names. Blocking it would block everybody, so there is no button.
  await page.evaluate(() => { location.hash = '#/explain/quiet/path/%2Fsearch'; });
  await until(page, '#answer button', /^Reset its counters$/);
  assert.ok(!(await textsOf(page, '#answer button')).some((name) => name.startsWith('Block')));
}

// An operator may need a minute to find the token. The page must not warn meanwhile.
async function patience() {
  const page = await open(() => {
    const now = performance.now.bind(performance);
    let ahead = 0;
    performance.now = () => now() + ahead;
    window.skip = (ms) => { ahead += ms; };
    window.alarms = [];
    addEventListener('DOMContentLoaded', () => {
      const notices = document.getElementById('notices');
      new MutationObserver(() => window.alarms.push(notices.textContent)).observe(notices, { childList: true });
    });
  });
  await until(page, 'dialog h2', /needs a token/);
  for (let at = 0; at < 3; at += 1) {
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.querySelector('dialog').open);
  }
  await page.evaluate(() => window.skip(60_000));
  // The page checks once a second whether the server is silent.
  await new Promise((done) => setTimeout(done, 2_500));
  await page.type('dialog input', options.token);
  await page.keyboard.press('Enter');
  await live(page);
  assert.deepEqual(await page.evaluate(() => window.alarms.filter((text) => text !== '')), []);
}

// Runs in a page of another site. Returns the result of each attempt.
async function attack(admin) {
  const block = JSON.stringify({ key: 'user_id', value: 'attacked', for: '10m' });
  const tried = (what) => what.then((answer) => `${answer.type} ${answer.status}`, () => 'refused');
  const plain = { method: 'POST', mode: 'no-cors', body: block };
  const results = {
    simple: await tried(fetch(`${admin}/block`, plain)),
    withHeader: await tried(fetch(`${admin}/block`, { method: 'POST', headers: { 'X-Spillgate-Admin': '1' }, body: block })),
    read: await tried(fetch(`${admin}/overview`)),
    events: await new Promise((done) => {
      const source = new EventSource(`${admin}/events`);
      source.onmessage = source.onopen = () => done('open');
      source.onerror = () => done('refused');
    }),
  };
  const frame = (attributes) => new Promise((done) => {
    const node = Object.assign(document.createElement('iframe'), attributes);
    node.onload = () => done(node);
    document.body.append(node);
  });
  // A form with this encoding sends its field as `name=value`, so its text can be JSON.
  const form = Object.assign(document.createElement('form'), { action: `${admin}/block`, method: 'post', enctype: 'text/plain', target: 'of_form' });
  const [before, after] = block.split('attacked');
  form.append(Object.assign(document.createElement('input'), { name: `${before}att`, value: `acked${after}` }));
  document.body.append(form);
  const answered = await frame({ name: 'of_form' });
  await new Promise((done) => {
    answered.onload = done;
    form.submit();
  });
  // The origin of a page in a sandbox is null.
  const script = `<script>fetch("${admin}/block", ${JSON.stringify(plain)}).finally(() => parent.postMessage("done", "*"))</script>`;
  const asked = new Promise((done) => addEventListener('message', done));
  await frame({ sandbox: 'allow-scripts', srcdoc: script });
  await asked;
  await frame({ src: `${admin}/`, id: 'page' });
  return results;
}

// A page of another site can read and change nothing, and cannot show this page in a frame. The server also refuses requests for
// a foreign name that points to this machine (DNS rebinding).
async function strangers() {
  const metric = async (reason) => {
    const text = await (await fetch(`${admin}/metrics`)).text();
    return Number(new RegExp(`^spillgate_admin_refused_total\\{reason="${reason}"\\} (\\d+)`, 'm').exec(text)[1]);
  };
  const site = createServer((request, response) => response.setHeader('content-type', 'text/html').end('<!doctype html><title>another site</title><body>'));
  await new Promise((ready) => site.listen(0, '127.0.0.1', ready));
  const page = await browser.newPage();
  page.setDefaultTimeout(DEADLINE_MS);
  await page.goto(`http://other.example:${site.address().port}/`);
  const before = await metric('origin');
  assert.deepEqual(await page.evaluate(attack, admin), { simple: 'refused', withHeader: 'refused', read: 'refused', events: 'refused' });
  assert.equal((await metric('origin')) - before, 7, 'each of these requests has reached the server');
  const framed = await (await page.$('#page')).contentFrame();
  while (!framed.url()) await new Promise((done) => setTimeout(done, 20));
  assert.match(framed.url(), /^chrome-error:/, 'the browser shows an error instead of the page');
  const { port } = new URL(admin);
  const rebound = await page.goto(`http://rebound.example:${port}/`);
  assert.equal(rebound.status(), 403);
  assert.ok((await metric('host')) > 0);
  assert.deepEqual((await (await fetch(`${admin}/blocks`)).json()).blocks, []);
  site.close();
}

// Returns the bytes of data (objects, lists, texts, numbers) that the page keeps, and of code that the browser made of its scripts.
async function kept(client) {
  let text = '';
  const add = ({ chunk }) => { text += chunk; };
  client.on('HeapProfiler.addHeapSnapshotChunk', add);
  await client.send('HeapProfiler.takeHeapSnapshot', { reportProgress: false });
  client.off('HeapProfiler.addHeapSnapshotChunk', add);
  const { snapshot: { meta: { node_fields: fields, node_types: [types] } }, nodes } = JSON.parse(text);
  const bytes = { data: 0, code: 0 };
  for (let at = 0; at < nodes.length; at += fields.length) {
    const kind = types[nodes[at + fields.indexOf('type')]];
    // Native nodes belong to the browser, for example its list of requests.
    if (kind !== 'native') bytes[kind === 'code' ? 'code' : 'data'] += nodes[at + fields.indexOf('self_size')];
  }
  return bytes;
}

// The updates of an hour arrive 60 times as fast. Neither the data of the page nor the document may grow. The browser compiles
// parts of the scripts again and again, so the size of the code is printed, but not compared.
async function flat() {
  // Each update is one call of JSON.parse, so these calls are counted.
  const page = await open(() => {
    const parse = JSON.parse;
    window.updates = 0;
    JSON.parse = (text) => {
      window.updates += 1;
      return parse(text);
    };
  });
  await live(page);
  const client = await page.createCDPSession();
  const samples = [];
  for (let updates = 600; updates <= 4_200; updates += 1_800) {
    await page.waitForFunction((updates) => window.updates >= updates, { polling: 100, timeout: DEADLINE_MS }, updates);
    const sample = { ...await kept(client), nodes: (await page.metrics()).Nodes };
    samples.push(sample);
    console.log(`${updates} updates: ${sample.data} bytes of data, ${sample.code} bytes of code, ${sample.nodes} nodes`);
  }
  const [first, last] = [samples[0], samples.at(-1)];
  assert.ok(last.data < first.data * 1.05, 'the data grew');
  // A notice or a reason can come meanwhile. One node for each hundred updates would be too many.
  assert.ok(last.nodes < first.nodes + 36, 'the document grew');
}

// The first line names what needs attention, in the order of docs/src/operating/page.md, and no badge says something else.
async function attention() {
  const page = await open();
  await live(page);
  const real = await (await fetch(`${admin}/overview`)).json();
  const steps = (allowed, refused) => ({ allowed: [allowed], refused: [refused], near: [0], shadow_refused: [0], soft_over: [0], wait_ms: [null] });
  const [first, second, third, fourth, ...others] = real.limits;
  const judged = (limit, verdict, who, attention, allowed, refused) => ({ ...limit, verdict, who, attention, reason: 'Seen.', history: steps(allowed, refused) });
  const idle = others.map((limit) => judged(limit, 'too_early', 'nobody', 2, 0, 0));
  const calm = [judged(first, 'effective', 'many', 3, 95, 5), judged(second, 'never_binding', 'nobody', 1, 100, 0), judged(third, 'too_early', 'nobody', 2, 95, 5), judged(fourth, 'unclear', 'many', 4, 92, 8)];
  const cases = [
    [{ limits: [...idle, ...calm] }, /^Nothing needs attention: of the requests of the last 10 minutes, 20 % were refused \(\d+ limits\)\.$/, 0],
    [{ limits: [...idle, ...calm.slice(1), judged(first, 'above_rate', 'one', 6, 65, 35)] }, /^1 of \d+ limits needs attention: per_user refuses 35 % of its requests\.$/, 1],
    [{ limits: [...idle, ...calm.slice(2), judged(second, 'too_early', 'many', 2, 10, 90), judged(first, 'bursts', 'many', 5, 88, 12)] }, /^2 of \d+ limits need attention, first: per_user refuses 12 % of its requests\.$/, 2],
    [{ limits: [...idle, ...calm.slice(1), judged(first, 'above_rate', 'many', 8, 65, 35)], reload_successful: false }, /^2 things need attention, first: the last reload of the rules failed\.$/, 1],
    [{ limits: [...idle, ...calm], store: { ...real.store, kind: 'redis', up: false }, reload_successful: false }, /^2 things need attention, first: the shared store does not answer\.$/, 0],
    [{ limits: [...idle, judged(first, 'effective', 'many', 3, 10, 1), judged(second, 'effective', 'many', 3, 9_000, 500), judged(third, 'effective', 'many', 3, 90, 9), judged(fourth, 'above_rate', 'many', 8, 65, 35)] }, /^1 of \d+ limits needs attention/, 1, [3, 1, 2, 0]],
    [{ limits: [...idle, ...calm], memory: { ...real.memory, full_requests: 7 } }, /^1 thing needs attention: 7 requests found no space for a key\.$/, 0],
  ];
  await post('/block', { key: 'user_id', value: '1', for: '1h' });
  for (const [change, wanted, urgent, order] of cases) {
    await page.setRequestInterception(true);
    const requests = { ...real.requests, history: { allowed: [80], refused: [20], errors: [0] } };
    const answer = (request) => (/\/overview$/.test(request.url()) ? request.respond({ contentType: 'application/json', body: JSON.stringify({ ...real, requests, ...change }) })
      // The events would have the real store and memory.
      : /\/events$/.test(request.url()) ? request.respond({ status: 503, contentType: 'application/problem+json', body: '{"detail":"no event stream is free"}' }) : request.continue());
    page.on('request', answer);
    await page.reload();
    await until(page, '.lede', wanted);
    // One reading of the totals is no rate: 0 would be a guess.
    await until(page, '.tile', /^Blocks1 blockHow much they refuse is known in 2 seconds\.$/);
    const rows = await page.$$eval('.limits tbody tr', (nodes) => nodes.map((node) => [node.querySelector('.badge').className, node.querySelector('a').textContent]));
    const [alarms, calms] = [rows.filter(([badge]) => /\b(warn|bad)\b/.test(badge)).length, rows.length - idle.length];
    assert.ok(alarms <= urgent, `${alarms} badges are alarms: ${wanted}`);
    // What needs attention comes first, and idle limits come last.
    const titleOf = ({ name, rule }) => name ?? rule;
    assert.deepEqual(rows.slice(calms).map(([, name]) => name).sort(), idle.map(titleOf).sort());
    if (order) assert.deepEqual(rows.slice(0, calms).map(([, name]) => name), order.map((at) => titleOf(real.limits[at])));
    assert.match((await textsOf(page, '#limits')).join(), /^Limits, ordered by what needs attention, then by refused requests of the last 10 minutes$/);
    // With a shared store, a page says that its figures are those of one server.
    const ofServer = (await textsOf(page, '.view > p.faint')).join();
    assert.equal(ofServer, change.store?.kind === 'redis' ? `The figures are those of this server, ${new URL(admin).host}. Servers that share its store have pages of their own.` : '');
    page.off('request', answer);
    await page.setRequestInterception(false);
  }
}

const PARTS = { attention, ended, paths, tabs, rates, lists, failures, shadowed, patience, strangers, flat, reloaded };
try {
  await PARTS[part]();
} finally {
  await close();
}
