// The first view: all traffic, the state of the server, and every limit, those that need attention first.

import { chart } from './chart.js';
import { faint, h, setAttribute, setText } from './dom.js';
import { bytes, count, duration, left, perSecond, plural, rate, share, time } from './format.js';
import { URGENT, limitLink, limitsTable } from './rows.js';
import { overRate, passedRate, perSecondOf, rateOf, shadowOf, state } from './state.js';

function tile(label, href) {
  const [value, note] = [h('p.value'), h('p.faint')];
  const element = h('div.tile', h('h2', href ? h('a', { href }, label) : label), value, note);
  return { element, set(text, more, tone = '') {
    setText(value, text);
    setText(note, more);
    setAttribute(element, 'class', `tile ${tone}`);
  } };
}

function storeTexts({ kind, url, up, error, latency_ns: latency }) {
  if (kind === 'memory') return ['in memory', 'Counts are in this server alone.'];
  const times = latency ? `Median ${duration(latency.median)}, 99 % within ${duration(latency.p99)}. ` : '';
  if (up === false) return ['does not answer', `${error ?? ''} ${url ?? ''}`.trim(), 'bad'];
  return ['answers', `${times}${url ?? ''}`, 'good'];
}

function headline() {
  const urgent = state.limits.filter((limit) => URGENT.includes(limit.verdict));
  let [over, highest] = [null, 0];
  for (const limit of state.limits) {
    const now = rateOf(limit, 'refused');
    if (now > highest) [over, highest] = [limit, now];
  }
  const total = plural(state.limits.length, 'limit');
  const first = urgent.length ? `${urgent.length} of ${total} ${urgent.length === 1 ? 'needs' : 'need'} a look.`
    : `No verdict asks for a change (${total}).`;
  return [first, over];
}

export function open() {
  const tiles = { store: tile('Store'), memory: tile('Memory'), blocks: tile('Blocks', '#/blocks'), shadow: tile('Shadow', '#/blocks'), rules: tile('Rules', '#/reloads') };
  const [allowed, refused, errors] = [h('b'), h('b'), h('b')];
  const shareText = faint();
  const traffic = chart('All requests', [['allowed', 'allowed'], ['refused', 'refused'], ['errors', 'errors']], perSecond);
  const first = h('span');
  const mostLink = h('a');
  const mostText = h('span');
  const most = h('span', ' Most refusals now: ', mostLink, mostText);
  const limits = limitsTable();
  const element = h('div.view', { hidden: true },
    h('h1.unseen', 'Overview'),
    h('p.lede', first, most),
    h('section.traffic', { 'aria-label': 'All traffic' },
      h('dl.now', h('div', h('dt', 'Allowed / s'), h('dd', allowed)),
        h('div.refused', h('dt', 'Refused / s'), h('dd', refused, shareText)),
        h('div.errors', h('dt', 'Errors / s'), h('dd', errors))),
      traffic.element),
    h('section.tiles', { 'aria-label': 'The server' }, ...Object.values(tiles).map((one) => one.element)),
    limits.element);
  let shown = null;

  function updateTiles() {
    const { server, rules_loaded_ms, reload_successful } = state.overview;
    tiles.store.set(...storeTexts(state.store));
    const { keys, keys_max, process_bytes, full_requests } = state.memory;
    const full = keys_max ? `${count(keys)} of ${count(keys_max)} keys (${share(keys, keys_max)})` : plural(keys, 'key');
    tiles.memory.set(process_bytes === null ? 'unknown' : bytes(process_bytes), full + (full_requests ? `. ${plural(full_requests, 'request')} found no space for a key.` : ''), full_requests ? 'bad' : '');
    const blocks = state.blocks?.blocks.length ?? 0;
    tiles.blocks.set(blocks ? plural(blocks, 'block') : 'none', blocks ? `${rate(rateOf(state.requests, 'blocked') ?? 0)} / s are refused by blocks.` : 'No caller is blocked.', blocks ? 'warn' : '');
    const { all, rules = [] } = state.shadows ?? {};
    const inShadow = state.limits.filter(shadowOf).length;
    const shadow = server.shadow ? ['all rules', 'A setting of this server: nothing is refused.', 'warn']
      : all ? ['all rules', `Nothing is refused by a rule, for ${left(all.until_ms - state.at_ms)}.`, 'warn']
        : rules.length ? [inShadow ? plural(inShadow, 'limit') : 'yes', `${plural(rules.length, 'rule')} for a time.`, 'warn']
          : inShadow ? [plural(inShadow, 'limit'), 'The rules file says so.']
          : ['none', 'Rules refuse what is over their limit.'];
    tiles.shadow.set(...shadow);
    tiles.rules.set(plural(state.limits.length, 'limit'), `${reload_successful ? 'Loaded' : 'The last reload failed. In use since'} ${time(rules_loaded_ms)}`, reload_successful ? '' : 'bad');
  }

  function updateTraffic() {
    const { requests, overview } = state;
    const now = ['allowed', 'refused', 'errors'].map((field) => rateOf(requests, field));
    [allowed, refused, errors].forEach((node, index) => setText(node, rate(now[index])));
    setText(shareText, now[0] + now[1] > 0 ? ` ${share(now[1], now[0] + now[1])}` : '');
    setAttribute(errors.parentNode.parentNode, 'class', now[2] > 0 ? 'errors some' : 'errors');
    if (shown !== overview) {
      const { history } = requests;
      traffic.set([history.allowed, history.refused, history.errors].map(perSecondOf), overview);
    }
    const [sentence, limit] = headline();
    setText(first, sentence);
    most.hidden = !limit;
    if (limit) {
      setText(mostLink, limit.label);
      setAttribute(mostLink, 'href', limitLink(limit));
      const [over, all] = [rateOf(limit, 'refused'), passedRate(limit) + overRate(limit)];
      setText(mostText, `, ${rate(over)} / s (${share(over, all)} of its requests).`);
    }
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
