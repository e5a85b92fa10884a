// One limit: its charts, what insight says about it, its callers, its rule, and its shadow switch.

import { blockNode, button, callerActions, ends, explainLink, hashActions, scopeText, shadow, shadowForm } from './actions.js';
import { get } from './api.js';
import { bar, chart, roundUpMs } from './chart.js';
import { act, field, fillOnce, h, onSubmit, outcome, say, section, setText, showError, table } from './dom.js';
import { bytes, callerEntries, count, duration, durationMs, isShared, nameOf, pathEntries, perSecond, plural, rate, share, time, titleOf } from './format.js';
import { limitLink, overNow, shadowMark, verdictBadge } from './rows.js';
import { blockOn, blocksOf, FIELDS, isStale, keyOf, overRate, passedRate, perSecondOf, shadowOf, state } from './state.js';

const INSIGHT_MS = 10_000;
const CALLERS = 8;
// More are in the list of all blocks.
const BLOCKS = 20;

// What happened to requests over the limit in the last hour, in words. In shadow they passed. If a switch put the rule into shadow,
// the requests before it and after it were refused, and the hour has both.
const REFUSED = { past: 'refused', units: 'refused units', Requests: 'Refused requests', Callers: 'Refused callers', share: 'Share refused' };
const WOULD = { past: 'that it would refuse', units: 'units that it would refuse', were: 'would be refused', Requests: 'Requests that it would refuse', Callers: 'Callers that it would refuse', share: 'Share that it would refuse' };
const EITHER = { past: 'that it refused or would refuse', units: 'units that it refused or would refuse', were: 'were or would be refused', Requests: 'Requests that it refused or would refuse', Callers: 'Callers that it refused or would refuse', share: 'Share that it refused or would refuse' };
function wordsOf(limit, { spans }) {
  const [refused, passed] = overOf(spans.at(-1));
  if (passed > 0) return refused > 0 ? EITHER : WOULD;
  return refused > 0 || !shadowOf(limit) ? REFUSED : WOULD;
}

// The requests of a span over the limit: those that were refused, and those that passed, because the limit only counted.
const overOf = ({ refused_requests: over, unenforced_requests: passed = 0 }) => [over - passed, passed];

const find = (domain, rule, number) => state.limits.find((limit) => limit.domain === domain && limit.rule === rule && limit.number === number);

// The limits of the rules that the rule of a limit is nested in, the outermost first.
const limitsAbove = ({ domain, rule }) => state.limits.filter((one) => one.domain === domain && rule.startsWith(`${one.rule} > `)).sort((a, b) => a.rule.length - b.rule.length);

// A figure of which only a range is known, because a refused request can come again.
function range({ at_least: low, at_most: high }, show) {
  const text = show(low);
  return high === null ? `at least ${text}` : text === show(high) ? text : `${text} to ${show(high)}`;
}

// What callers did, with one number in each cell. If all requests count as one caller, nothing is told of callers.
function figures({ spans: all, watched_ns: watched }, words, isOne) {
  // After a start, or after a change of the limit, a longer span has no more than a shorter one.
  const spans = all.filter((_, index) => index === 0 || all[index - 1].span_ns < watched);
  const length = (span) => duration(Math.max(1e9, Math.floor(Math.min(span.span_ns, watched) / 1e9) * 1e9));
  const estimate = ({ value, relative_error: error }) => `${error > 0 ? '≈ ' : ''}${count(value)}`;
  const units = (number) => count(Math.ceil(number));
  const rows = [
    ['Requests', (span) => count(span.requests)],
    ...(words === WOULD ? [] : [['Refused requests', (span) => count(overOf(span)[0])]]),
    ...(spans.some((span) => span.refused_elsewhere_requests) ? [['Requests that other limits refused', (span) => count(span.refused_elsewhere_requests)]] : []),
    ...(words === REFUSED ? [] : [['Requests over the limit in shadow', (span) => count(overOf(span)[1])]]),
    [words.share, (span) => share(span.refused_requests, span.requests)],
    ...(isOne ? [] : [['Callers', (span) => estimate(span.callers.asked)], [words.Callers, (span) => estimate(span.callers.refused)]]),
    [`Wait of half of the ${words.Requests.toLowerCase()}, at most`, (span) => span.waits && duration(span.waits.median_ns)],
    [`Wait of 9 of 10 ${words.Requests.toLowerCase()}, at most`, (span) => span.waits && duration(span.waits.p90_ns)],
  ].map(([name, text]) => [name, ...spans.map(text)]).filter(([, ...texts]) => texts.some(Boolean));
  const heads = spans.map((span) => `Last ${length(span)}`);
  // A range shows that only its two ends are known.
  const hour = spans.at(-1);
  const needs = [['Burst needed', hour.burst_needed, units], ['Highest count of a window', hour.window_count, units], ['Use of the limit', hour.use_share, (number) => share(number, 1)]]
    .filter(([, seen]) => seen).map(([name, seen, show]) => [name, ...(isOne ? ['highest'] : ['median', 'p99', 'highest']).map((at) => numberCell(range(seen[at], show)))]);
  return [table('.figures', h('caption', 'What callers did'), ['', ...heads], rows.map(([name, ...texts]) => [name, ...texts.map((text) => numberCell(text || '–'))])),
    needs.length > 0 && table('.figures', h('caption', isOne ? `What all requests need together, last ${length(hour)}` : `What each caller needs, last ${length(hour)}`),
      isOne ? ['', 'At most'] : ['', 'Half of them, at most', '99 %, at most', 'Highest'], needs)];
}

const numberCell = (text) => ['number', text];

async function copy(text, pre) {
  getSelection().selectAllChildren(pre);
  // Without HTTPS, scripts have no clipboard. Then the text is copied as a user would.
  const done = navigator.clipboard?.writeText(text) ?? document.execCommand('copy');
  if (await done === false) throw new Error('The browser does not allow it. The text is selected: copy it with the keyboard.');
}

function suggestion(yaml, evidence) {
  const output = outcome();
  const pre = h('pre', { tabindex: '0', 'aria-label': 'Suggested rule' }, yaml);
  return [h('h3', 'Suggested rule'), h('p', evidence), pre, h('div.row', button('Copy', output, async () => {
    await copy(yaml, pre);
    return 'Copied. Change the numbers in your own file, and keep its other options.';
  }), output)];
}

const callerName = (caller) => caller.name ?? `hash ${caller.id}`;

// `path` names the entries of the callers, as the path of a rule does.
function callers(what, top, limit, output, path = limit.rule) {
  const rows = top.callers.slice(0, CALLERS).map((caller) => {
    const entries = callerEntries(caller.name, path);
    const blocked = entries && blockOn(limit.domain, entries);
    return [[h('code', callerName(caller)), blocked && h('span.badge.bad', `blocked until ${time(blocked.until_ms)}`)], ['number', count(caller.units)],
      ['number', share(caller.units, top.units), bar('plain').set(caller.units, top.units).element],
      entries ? callerActions(limit.domain, entries, path, output, blocked) : hashActions(caller.id, output)];
  });
  if (!rows.length) return h('section', h('h3', `Most ${what}`), h('p.faint', `Nobody since ${time(top.since_ns / 1e6)}.`));
  const hidden = top.callers.every((caller) => caller.name === null);
  return h('section',
    table('.callers', h('caption', `Most ${what}, since ${time(top.since_ns / 1e6)}`), ['Caller', 'Units', 'Share', 'Do'], rows),
    hidden && h('p.faint', 'With the setting “insight.keys: plain” and a reload, callers have names.'));
}

const WHO = { one: 'One caller', few: 'A few callers', many: 'Many callers' };

// Whether a limit counts all requests as one caller. A key can contain a "=", so the path alone does not say it for certain.
const countsAll = ({ rule, spans }) => isShared(rule) && spans.at(-1).callers.asked.value <= 1;

// Says whether one caller or a crowd is refused.
function refusedSentence(insight, words) {
  const { who, top_refused: top, spans } = insight;
  const [first] = top.callers;
  if (countsAll(insight)) return [ONE_CALLER, ...(insight.by ? [' “Who fills it” shows whose they are.'] : insightBy())];
  if (who === 'nobody') return words === REFUSED ? 'Nobody is refused.' : 'It would refuse nobody.';
  const { asked, refused } = spans.at(-1).callers;
  // The settings can hide callers.
  const number = count(refused.value);
  const of = ` Of ${plural(Math.round(asked.value), 'caller')}, ${words === REFUSED ? `${number} ${number === '1' ? 'was' : 'were'} refused` : `${number} ${words.were}`} at least once.`;
  const { units } = words;
  if (!first) return [h('strong', WHO[who]), ` had most of the ${units}.`, of];
  const [name, part] = [h('code', callerName(first)), `${share(first.units, top.units)} of the ${units}`];
  const ends = { one: [' has ', part, ': ', name, '.'], few: [` have most of the ${units}. The first is `, name, ', with ', part, '.'], many: [` have the ${units}. The first is `, name, ', with ', part, '.'] };
  return [h('strong', WHO[who]), ...ends[who], of];
}

// What a rule needs so that the page can show who fills a limit that all requests share.
const insightBy = () => [' To see whose they are, add ', h('code', 'insight_by: KEY'), ' to the rule, with the key of an entry that tells callers apart, such as ', h('code', 'remote_address'), '. Then reload.'];
const ONE_CALLER = 'All requests count as one caller here.';

// The reason of a verdict speaks of one caller, which would be a riddle here.
function ofAll(span, words) {
  const { requests, refused_requests: over, span_ns } = span;
  const [refused, passed] = overOf(span);
  const apart = words === EITHER ? ` Of these, ${count(refused)} were refused, and ${count(passed)} passed, but would be refused.` : '';
  return `${words.Requests}, last ${duration(span_ns)}: ${count(over)} of ${count(requests)} (${share(over, requests)}).${apart}`;
}

// A form that says what another limit would have changed.
function otherLimitForm(limit, query) {
  const output = h('p.outcome', { role: 'status' });
  const input = h('input', { type: 'number', name: 'limit', min: '1', step: '1', required: true, value: String(limit.limit * 2) });
  const submit = h('button', 'Try');
  const form = h('form.inline', field(`Instead of ${limit.summary}`, input), submit);
  const answer = h('p.said');
  onSubmit(form, () => act(submit, output, async () => {
    answer.replaceChildren();
    const { limits } = await get(`/insight?${query}&limit=${encodeURIComponent(input.value)}`);
    const one = limits.find((other) => keyOf(other) === keyOf(limit));
    const text = one?.with_limit?.text;
    answer.append(...(text ? [isShared(limit.rule) && `${ONE_CALLER} `, shadowOf(limit) && 'If it refused: ', text].filter(Boolean)
      : ['Nobody can know: no caller was seen, the number is no valid limit, or the limit is a queue or has permits.']));
    say(answer.textContent);
    return '';
  }));
  return [h('p', 'Tries the number on what insight has seen of the callers, or of a sample if they are many, in the last 30 to 60 minutes. It changes nothing.'), form, output, answer];
}

function shadowCard(limit) {
  const now = shadowOf(limit);
  const rule = { domain: limit.domain, path: limit.rule };
  const output = outcome();
  if (now?.by === 'server') return [h('p', 'The server runs in shadow (a setting): no request is refused.')];
  if (now?.by === 'all') return [h('p', 'All rules are in shadow, ', h('a', { href: '#/blocks' }, 'see there'), '.')];
  if (now?.by === 'switch') {
    return [h('p', `This rule counts, but refuses nothing, ${scopeText(now.scope)}. Left: `, ends(now.until_ms)),
      button('End shadow now', output, () => shadow({ rule, on: false })), output];
  }
  if (now?.by === 'file') return [h('p', 'This rule has shadow_mode in its file and refuses nothing. Change the file to end that.')];
  const { form, output: done } = shadowForm(rule);
  return [h('p', 'In shadow, the rule counts, but lets requests over its limits pass. You see here what it would refuse. It ends by itself.'), form, done];
}

export function open([domain, rule, number]) {
  const [title, badges, subtitle, missing, parents] = [h('span'), h('span.badges'), h('p.faint'), h('p'), h('span')];
  const traffic = chart('Requests', [['allowed', 'allowed'], ['refused', 'refused', true], ['would', 'over the limit in shadow', true]], perSecond);
  const near = chart('Allowed, but near the limit', [['near', 'near']], perSecond);
  const wait = chart('Wait of requests over the limit (9 of 10 wait no longer)', [['wait', 'wait']], durationMs, roundUpMs);
  const [verdict, done, refused, allowed, shadowBox, ruleBox, ruleText, otherBox, byBox] = Array.from({ length: 9 }, () => h('div'));
  const blocked = h('div');
  const blockedBox = section('.wide.blocks', 'blocked', 'Blocked now', null, blocked);
  byBox.className = 'pair';
  const [callersTitle, pair] = [h('span', 'Top callers'), h('div.pair', refused, allowed)];
  const [output, blockOutput, error, now] = [outcome(), outcome(), outcome(), h('p.lede')];
  const callersBox = section('.wide', 'callers', callersTitle, null, output, pair, byBox);
  const content = h('div.columns', { hidden: true },
    h('section', { 'aria-label': 'Charts' }, traffic.element, near.element, wait.element),
    h('div.cards',
      section('.card', 'insight', 'Does it do its job?', null, verdict, error),
      section('.card', 'other', 'What would another limit change?', null, otherBox),
      section('.card', 'rule', 'The rule', null, ruleText, ruleBox),
      section('.card', 'shadow', 'Shadow', null, shadowBox)),
    h('div.seen', done),
    callersBox);
  const element = h('div.view',
    h('p.crumbs', h('a', { href: '#/' }, 'Overview'), ' › ', domain, parents),
    h('h1', title, badges), subtitle, missing, now, blockedBox, blockOutput, content);
  const query = new URLSearchParams({ domain, rule });
  let insight = null;
  let [shownAt, shownKey, textKey] = [null, null, null];

  const isInUse = () => element.matches(':has(.actions:hover, .blocks button:hover, .callers :focus-visible, .blocks :focus-visible, [name=callers]:focus)');

  // The blocks that refuse requests of this rule. They change more often than what insight says.
  function showBlocks(limit) {
    if (!state.blocks || isInUse()) return;
    const blocks = blocksOf(limit, insight?.by?.key);
    blockedBox.hidden = blocks.length === 0;
    fillOnce(blocked, blocks.map((one) => [one.key, one.value, one.domain, one.until_ms, one.refused]), () => [
      h('p', state.overview.server.shadow ? 'The server runs in shadow, so its blocks refuse nothing.' : 'A request with such an entry is refused before the limit counts it.'),
      ...blocks.slice(0, BLOCKS).map((one) => blockNode(one, blockOutput)),
      blocks.length > BLOCKS && h('p', h('a', { href: '#/blocks' }, `and ${plural(blocks.length - BLOCKS, 'more block')}`))]);
    if (insight) showCallers(limit, blocks.map((one) => [one.key, one.value, one.domain, one.until_ms]));
  }

  function showCallers(limit, blocks) {
    const { by, top_refused, top_allowed } = insight;
    const words = wordsOf(limit, insight);
    const key = [blocks, words];
    fillOnce(byBox, [by, key], () => (by ? [callers(`${words.past} by ${by.key}`, by.refused, limit, output, by.key), callers(`allowed by ${by.key}`, by.allowed, limit, output, by.key)] : []));
    if (countsAll(insight)) return;
    fillOnce(refused, [top_refused, key], () => callers(words.past, top_refused, limit, output));
    fillOnce(allowed, [top_allowed, key], () => callers('allowed', top_allowed, limit, output));
  }

  const elsewhere = () => insight?.spans.at(-1).refused_elsewhere_requests > 0;

  function showInsight(limit) {
    const words = wordsOf(limit, insight);
    const isAll = countsAll(insight);
    fillOnce(verdict, [insight.verdict, insight.who, insight.reason, insight.top_refused, insight.suggested_rules, words, isAll], () => [
      h('p', refusedSentence(insight, words)),
      // The advice would be about this one caller.
      isAll && insight.who === 'one' ? '' : h('p', h('strong', insight.advice)),
      isAll && insight.verdict !== 'too_early' ? h('p', ofAll(insight.spans.at(-1), words)) : h('p', insight.reason),
      insight.causes && !isAll ? h('p', insight.causes) : '',
      ...(insight.suggested_rules ? suggestion(insight.suggested_rules, insight.evidence) : [])]);
    fillOnce(done, [insight.spans, words, isAll], () => figures(insight, words, isAll));
    setText(callersTitle, isAll ? 'Who fills it' : 'Top callers');
    const { by } = insight;
    // Without `insight_by`, nobody knows who fills it. The verdict says how to get to know it.
    [callersBox.hidden, pair.hidden] = [isAll && !by, isAll];
    showBlocks(limit);
  }

  async function readRule(key, line) {
    let [parts, next] = [[], key];
    try {
      const { rules } = await get(`/rules?${query}`);
      parts = rules.filter(({ limits }) => limits.some((one) => one.line === line)).flatMap(written);
    } catch (failure) {
      // The next overview leads to another try.
      [parts, next] = [[h('p.outcome.bad', failure.message)], null];
    }
    if (textKey !== key) return;
    textKey = next;
    ruleText.replaceChildren(...parts);
  }

  async function readInsight() {
    const isShown = verdict.hasChildNodes();
    if (document.hidden || isStale() || isShown && isInUse()) return;
    const limit = find(domain, rule, Number(number));
    if (!limit) return;
    try {
      const { limits } = await get(`/insight?${query}`);
      insight = limits.find((one) => keyOf(one) === keyOf(limit)) ?? null;
      error.replaceChildren();
      if (insight) showInsight(limit);
      else fillOnce(verdict, 'none', () => h('p', 'Not watched: the setting insight.max_callers is off, or too small for all limits.'));
    } catch (failure) {
      showError(error, failure);
    }
  }

  const timer = setInterval(readInsight, INSIGHT_MS);
  return {
    title: rule,
    element,
    close: () => clearInterval(timer),
    update() {
      if (!state.overview) return;
      const limit = find(domain, rule, Number(number));
      [badges, subtitle, now, content].forEach((node) => { node.hidden = !limit; });
      if (!limit) blockedBox.hidden = true;
      setText(missing, limit ? '' : 'The rules have no such limit now. A reload may have removed or renamed it.');
      setText(title, limit ? titleOf(limit) : rule);
      if (!limit) return;
      const above = limitsAbove(limit);
      fillOnce(parents, above.map((one) => [limitLink(one), nameOf(one)]), () => above.flatMap((one) => [' › ', h('a.name', { href: limitLink(one), title: one.rule }, nameOf(one))]));
      setText(subtitle, `${limit.domain}: ${limit.rule} – ${limit.summary}`);
      const shadowed = shadowOf(limit);
      fillOnce(badges, [limit.verdict, limit.who, shadowed?.by], () => [verdictBadge(limit), shadowMark(limit)]);
      const [was, over] = [passedRate(limit), overRate(limit)];
      const since = shadowed?.since_ms ? ` It is in shadow since ${time(shadowed.since_ms)}.` : '';
      setText(now, was === null ? '' : `Now ${rate(was)} / s allowed, ${rate(over)} / s (${share(over, was + over)}) ${overNow(limit).past}.${shadowed ? ' In shadow, this limit refuses nothing.' : ''}${since}${elsewhere() ? ' Requests that this limit allows and other limits refuse count as allowed here.' : ''}`);
      showBlocks(limit);
      fillOnce(shadowBox, [shadowed?.by, shadowed?.until_ms, shadowed?.scope, state.shadows?.scope_default], () => shadowCard(limit));
      fillOnce(ruleBox, [keyOf(limit), FIELDS.map((field) => limit[field])], () => [
        h('p', `Counted so far: ${plural(limit.allowed + limit.soft_over, 'hit')} allowed, ${count(limit.refused)} refused, ${limit.shadow_refused ? `${count(limit.shadow_refused)} over the limit in shadow, ` : ''}${count(limit.near)} near.`),
        h('p', h('a', { href: explainLink(domain, pathEntries(rule)) }, 'Explain a request of this rule'))]);
      if (shownAt === state.overview) return;
      // A reload can put another limit here, or change its rule.
      if (shownKey !== keyOf(limit)) {
        shownKey = keyOf(limit);
        fillOnce(otherBox, shownKey, () => otherLimitForm(limit, query));
        [verdict, done, refused, allowed, byBox].forEach((node) => fillOnce(node, '', () => []));
        readInsight();
      }
      const key = `${shownKey} ${state.overview.server.id} ${state.overview.changes}`;
      if (textKey !== key) {
        textKey = key;
        readRule(key, limit.line);
      }
      shownAt = state.overview;
      const { history } = limit;
      traffic.set([history.passed, history.refused, history.shadow_refused].map(perSecondOf), state.overview);
      near.set([perSecondOf(history.near)], state.overview);
      wait.set([history.wait_ms], state.overview);
    },
  };
}

// A rule as its file has it.
const written = ({ rule, file, line, text, text_bytes_left_out: left }) => [h('p', h('code', `${file}:${line}`), ` ${rule}`), h('pre', { tabindex: '0', 'aria-label': 'Text of the rule' }, text),
  left ? h('p', `The file has ${bytes(left)} more of this rule.`) : ''];
