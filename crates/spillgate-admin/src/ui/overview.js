// The first view: all traffic, the state of the server, and every limit, those that need attention first.

import { chart } from './chart.js';
import { faint, h, setAttribute, setText } from './dom.js';
import { bytes, count, duration, left, nameOf, perSecond, plural, rate, share, time } from './format.js';
import { limitLink, limitsTable, needy, overBefore, refusedShare } from './rows.js';
import { perSecondOf, rateOf, shadowOf, state, sum } from './state.js';

function tile(label, href) {
  const [value, note] = [h('p.value'), h('p.faint')];
  const element = h('div.tile', h('h2', href ? h('a', { href }, label) : label), value, note);
  return { element, set(text, more, tone = '') {
    setText(value, text);
    setText(note, more);
    setAttribute(element, 'class', `tile ${tone}`);
  } };
}

function blockedText() {
  const blocked = rateOf(state.requests, 'blocked');
  return blocked === null ? 'How much they refuse is known in 2 seconds.' : `${rate(blocked)} / s are refused by blocks.`;
}

function storeTexts({ kind, url, up, error, latency_ns: latency }) {
  if (kind === 'memory') return ['in memory', 'Counts are in this server alone.'];
  const times = latency ? `Median ${duration(latency.median)}, 99 % within ${duration(latency.p99)}. ` : '';
  if (up === false) return ['does not answer', `${error ?? ''} ${url ?? ''}`.trim(), 'bad'];
  return ['answers', `${times}${url ?? ''}`, 'good'];
}

// Such as "refuses 12 % of its requests".
function overShare(limit) {
  const [words, part] = [overBefore(limit).now, share(refusedShare(limit), 1)];
  return words === 'over the limit' ? `had ${part} of its requests over the limit` : `${words} ${part} of its requests`;
}

// What needs attention now, the first thing first, as [text, limit]. docs/src/operating/page.md says which things these are.
function needs() {
  const { overview, store, memory, requests, shadows } = state;
  const errors = rateOf(requests, 'errors');
  return [
    store.up === false && ['the shared store does not answer'],
    errors > 0 && [`${rate(errors)} requests / s end with an error`],
    !overview.reload_successful && ['the last reload of the rules failed'],
    memory.full_requests > 0 && [`${plural(memory.full_requests, 'request')} found no space for a key`],
    (overview.server.shadow || shadows?.all) && ['all rules are in shadow, so no limit refuses a request'],
    ...needy().map((limit) => [overShare(limit), limit]),
  ].filter(Boolean);
}

// What the line says if nothing needs attention.
function calm() {
  const { history } = state.requests;
  const [rates, hasSteps] = [['allowed', 'refused'].map((field) => rateOf(state.requests, field)), history.allowed.length > 0];
  if (rates.includes(null) && !hasSteps) return 'The first figures come in 2 seconds';
  const [allowed, refused] = hasSteps ? [sum(history.allowed), sum(history.refused)] : rates;
  if (allowed + refused === 0) return `Nothing needs attention: there were no requests in the last 10 ${hasSteps ? 'minutes' : 'seconds'}`;
  return `Nothing needs attention: of the requests of the last 10 ${hasSteps ? 'minutes' : 'seconds'}, ${share(refused, allowed + refused)} were refused`;
}

function headline() {
  const [first, ...others] = needs();
  const total = plural(state.limits.length, 'limit');
  if (!first) return [`${calm()} (${total}).`];
  const number = others.length + 1;
  const what = first[1] ? total : plural(number, 'thing');
  const need = number === 1 ? 'needs' : 'need';
  return [`${first[1] ? `${number} of ${what}` : what} ${need} attention${number === 1 ? ': ' : ', first: '}`, ...first];
}

export function open() {
  const tiles = { store: tile('Store'), memory: tile('Memory'), blocks: tile('Blocks', '#/blocks'), shadow: tile('Shadow', '#/blocks'), rules: tile('Rules', '#/reloads') };
  const [allowed, refused, errors] = [h('b'), h('b'), h('b')];
  const shareText = faint();
  const traffic = chart('All requests', [['allowed', 'allowed'], ['refused', 'refused'], ['errors', 'errors']], perSecond);
  const [first, firstLink, firstText, ofServer] = [h('strong'), h('a.name'), h('span'), h('p.faint')];
  const limits = limitsTable();
  const element = h('div.view', { hidden: true },
    h('h1.unseen', 'Overview'),
    h('p.lede', first, firstLink, firstText),
    ofServer,
    h('section.traffic', { 'aria-label': 'All traffic' },
      h('dl.now', h('div', h('dt', 'Allowed / s'), h('dd', allowed)),
        h('div.refused', h('dt', 'Refused / s'), h('dd', refused, shareText)),
        h('div.errors', h('dt', 'Errors / s'), h('dd', errors))),
      traffic.element),
    h('section.tiles', { 'aria-label': 'The server' }, ...Object.values(tiles).map((one) => one.element)),
    limits.element);
  let shown = null;

  function updateTiles() {
    const { server, rules: rulesNumber, rules_loaded_ms, reload_successful, limits_left_out } = state.overview;
    tiles.store.set(...storeTexts(state.store));
    const { keys, keys_max, process_bytes, full_requests } = state.memory;
    const full = keys_max ? `${count(keys)} of ${count(keys_max)} keys (${share(keys, keys_max)})` : plural(keys, 'key');
    tiles.memory.set(process_bytes === null ? 'unknown' : bytes(process_bytes), full + (full_requests ? `. ${plural(full_requests, 'request')} found no space for a key.` : ''), full_requests ? 'bad' : '');
    const blocks = state.blocks?.blocks.length ?? 0;
    tiles.blocks.set(blocks ? plural(blocks, 'block') : 'none', blocks ? blockedText() : 'No caller is blocked.');
    const { all, rules = [] } = state.shadows ?? {};
    const inShadow = state.limits.filter(shadowOf).length;
    const shadow = server.shadow ? ['all rules', 'A setting of this server: nothing is refused.', 'warn']
      : all ? ['all rules', `Nothing is refused by a rule, for ${left(all.until_ms - state.at_ms)}.`, 'warn']
        : rules.length ? [inShadow ? plural(inShadow, 'limit') : 'yes', `${plural(rules.length, 'rule')} for a time.`]
          : inShadow ? [plural(inShadow, 'limit'), 'The rules file says so.']
          : ['none', 'Rules refuse what is over their limit.'];
    tiles.shadow.set(...shadow);
    const limited = new Set(state.limits.map(({ domain, rule }) => `${domain}\0${rule}`)).size;
    // A rule without a limit leads to the rules below it.
    const known = limits_left_out > 0 || limited === rulesNumber ? '' : `, ${count(limited)} of them with limits`;
    tiles.rules.set(plural(state.limits.length + limits_left_out, 'limit'),
      `${plural(rulesNumber, 'rule')}${known}. ${reload_successful ? 'Loaded' : 'The last reload failed. In use since'} ${time(rules_loaded_ms)}.`, reload_successful ? '' : 'bad');
  }

  function updateTraffic() {
    const { requests, overview } = state;
    const now = ['allowed', 'refused', 'errors'].map((field) => rateOf(requests, field));
    [allowed, refused, errors].forEach((node, index) => setText(node, rate(now[index])));
    setText(shareText, now[0] + now[1] > 0 ? ` ${share(now[1], now[0] + now[1])}` : '');
    // Zero is no alarm, so it has no colour.
    setAttribute(refused.parentNode.parentNode, 'class', now[1] > 0 ? 'refused some' : 'refused');
    setAttribute(errors.parentNode.parentNode, 'class', now[2] > 0 ? 'errors some' : 'errors');
    if (shown !== overview) {
      const { history } = requests;
      traffic.set([history.allowed, history.refused, history.errors].map(perSecondOf), overview);
    }
    const [sentence, text = '', limit] = headline();
    setText(first, sentence);
    setText(ofServer, state.store.kind === 'memory' ? '' : `The figures are those of this server, ${location.host}. Servers that share its store have pages of their own.`);
    firstLink.hidden = !limit;
    setText(firstLink, limit ? nameOf(limit) : '');
    setAttribute(firstLink, 'href', limit ? limitLink(limit) : null);
    setAttribute(firstLink, 'title', limit ? `${limit.domain}: ${limit.rule}` : null);
    setText(firstText, text && `${limit ? ' ' : ''}${text}.`);
  }

  return {
    title: 'Overview',
    element,
    close: limits.close,
    update() {
      if (!state.overview) return;
      element.hidden = false;
      updateTraffic();
      updateTiles();
      limits.update(shown !== state.overview);
      shown = state.overview;
    },
  };
}
