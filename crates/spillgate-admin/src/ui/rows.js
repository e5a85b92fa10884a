// The table of all limits: each as a row, those that need attention first.

import { bar, spark } from './chart.js';
import { faint, fillOnce, h, section, setAttribute, setText } from './dom.js';
import { count, isShared, overWords, pathLevels, plural, rate, share, titleOf, verdict as verdictText } from './format.js';
import { overRate, passedRate, rateOf, shadowOf, state, sum } from './state.js';

const SEARCH_FROM = 10;
// Verdicts that ask for attention, and those that say nothing about the limit.
const URGENT = ['above_rate', 'never_passes', 'bursts'];
const UNKNOWN = [null, 'too_early', 'unclear'];
// Without a verdict, a limit that refuses more than this share needs attention. "Effective" has the same bound.
const SHARE_MAX = 0.1;
const [IDLE, BUSY, REFUSES, JUDGED] = [0, 1, 2, 3];

export const limitLink = (limit) => `#/limit/${[limit.domain, limit.rule, limit.number].map(encodeURIComponent).join('/')}`;

// The order of each column: the highest comes first, and further numbers decide between equal ones.
const ORDERS = {
  attention: (limit) => [rank(limit) >= REFUSES && !onlyCounts(limit) ? 1 : 0, rank(limit), rank(limit) === JUDGED ? limit.attention : 0, tenMinutes(limit)[1]],
  name: null,
  allowed: (limit) => [passedRate(limit) ?? 0],
  refused: (limit) => [overRate(limit) ?? 0],
  share: (limit) => [refusedShare(limit) ?? -1],
};
function highestFirst(a, b) {
  const at = a.findIndex((number, index) => number !== b[index]);
  return at < 0 ? 0 : b[at] - a[at];
}


// The order in words, for the heading.
const IN_WORDS = {
  attention: 'by what needs attention, then by refused requests of the last 10 minutes',
  name: 'by name', allowed: 'by allowed requests now', refused: 'by refused requests now', share: 'by the share refused in the last 10 minutes',
};
const COLUMNS = [['name', 'Limit'], ['allowed', 'Allowed / s'], ['refused', 'Refused / s'], [null, 'Last 10 minutes'], ['share', 'Share refused'], ['attention', 'Verdict']];

// Limits with a verdict that asks for attention come first, then those that refuse much without a verdict. Idle ones are last. A limit
// that only counts hurts nobody, so it comes after those that refuse.
function rank(limit) {
  if (URGENT.includes(limit.verdict)) return JUDGED;
  const part = refusedShare(limit);
  if (UNKNOWN.includes(limit.verdict) && part > SHARE_MAX) return REFUSES;
  return part === null ? IDLE : BUSY;
}

// The limits that need attention, the first one first. docs/src/operating/page.md says which these are.
export const needy = () => state.limits.filter((limit) => rank(limit) >= REFUSES).sort((a, b) => highestFirst(ORDERS.attention(a), ORDERS.attention(b)));

// The share of the last ten minutes, or of the last seconds if there is no history yet. Null without requests.
export function refusedShare(limit) {
  const [allowed, refused] = tenMinutes(limit);
  return allowed + refused > 0 ? refused / (allowed + refused) : null;
}

// Whether the limit only counts now, and refuses nothing.
const onlyCounts = (limit) => Boolean(shadowOf(limit)) || (limit.options.binding ?? 'enforce') !== 'enforce';

// The requests of the last ten minutes that the limit allowed, and those over it. After shadow has ended, what passed in it counts as
// allowed, so that it does not look as if the limit still refused nothing.
function tenMinutes(limit) {
  const { passed, over, shadow_refused: would } = limit.history;
  if (passed.length && onlyCounts(limit)) return [sum(passed), sum(over)];
  if (passed.length) return [sum(passed) + sum(would), Math.max(0, sum(over) - sum(would))];
  return [passedRate(limit) ?? 0, overRate(limit) ?? 0];
}

export function shadowMark(limit) {
  const shadow = shadowOf(limit);
  return shadow && h('span.badge.faint', 'shadow');
}

export function verdictBadge(limit) {
  const [text, tone] = verdictText(limit);
  return h(`span.badge.${tone}`, text);
}

// What the requests over the limit are called now: in shadow they pass.
export function overNow(limit) {
  const [refused, would] = [rateOf(limit, 'refused'), rateOf(limit, 'shadow_refused')];
  return refused > 0 || would > 0 ? overWords(refused, would) : overWords(0, shadowOf(limit) ? 1 : 0);
}

// What the requests over the limit of the last ten minutes are called.
export function overBefore(limit) {
  const [refused, would] = [sum(limit.history.refused), onlyCounts(limit) ? sum(limit.history.shadow_refused) : 0];
  return refused > 0 || would > 0 ? overWords(refused, would) : overNow(limit);
}

function makeRow() {
  const link = h('a');
  const [allowed, refused] = [h('td.number'), h('td.number')];
  const [domain, parents, own, small] = [h('span.domain'), h('span.parents'), h('span.own'), h('span')];
  const path = h('span.path.faint', domain, parents, own, small);
  // A long reason is cut, and a click shows all of it.
  const why = h('summary');
  const reason = h('details.reason', why);
  const [overText, overNote, shareText, shareNote, verdict, mark] = Array.from({ length: 6 }, () => h('span'));
  [overNote, shareNote].forEach((note) => { note.className = 'note'; });
  refused.append(overText, overNote);
  const picture = spark(['would', 'refused', 'allowed'], 120, 28);
  const part = bar('refused');
  const shareCell = h('td.number', shareText, part.element, shareNote);
  const element = h('tr', h('th', { scope: 'row' }, h('span.title', link, mark), path), allowed, refused,
    h('td.picture', picture.element), shareCell, h('td.verdict', verdict, reason));
  COLUMNS.forEach(([, text], index) => index > 0 && element.children[index].setAttribute('data-head', text));
  const parts = { element, link, path, domain, parents, own, small, allowed, refused, overText, overNote, shareText, shareNote, part, picture, verdict, reason, why, mark };
  return { element, parts };
}

function updateRow(row, limit) {
  const [allowed, refused] = [passedRate(limit), overRate(limit)];
  setText(row.allowed, rate(allowed));
  setText(row.overText, rate(refused));
  const shadow = shadowOf(limit)?.by ?? '';
  const words = overNow(limit);
  // Only what was refused is red.
  setAttribute(row.refused, 'class', rateOf(limit, 'refused') > 0 ? 'number over' : 'number');
  setText(row.overNote, words.past === 'refused' || !(refused > 0) ? '' : words.now);
  fillOnce(row.mark, shadow, () => shadowMark(limit));
  if (row.limit === limit) return;
  row.limit = limit;
  setAttribute(row.link, 'href', limitLink(limit));
  setText(row.link, titleOf(limit));
  const title = `${limit.domain}: ${limit.rule} · ${limit.name === null ? '' : `${limit.name} · `}${limit.summary}`;
  setAttribute(row.link, 'title', title);
  // A narrow column cuts the parents first, because the last level says more of the rule. The title of a limit without a name is its path.
  const levels = limit.name === null ? [] : pathLevels(limit.rule).map(([, , text]) => text);
  setText(row.domain, limit.name === null ? limit.domain : `${limit.domain}: `);
  setText(row.parents, levels.slice(0, -1).map((text) => `${text} > `).join(''));
  setText(row.own, levels.at(-1) ?? '');
  setText(row.small, ` · ${limit.summary}`);
  setAttribute(row.path, 'title', title);
  const [wasAllowed, wasRefused] = tenMinutes(limit);
  const { past, now } = overBefore(limit);
  setText(row.shareText, share(wasRefused, wasAllowed + wasRefused));
  setText(row.shareNote, past === 'refused' || !(wasRefused > 0) ? '' : now);
  setAttribute(row.part.element, 'class', past === 'would be refused' ? 'bar would' : 'bar refused');
  row.part.set(wasRefused, wasAllowed + wasRefused);
  // A narrow screen leaves out the zeros of an idle limit.
  setAttribute(row.element, 'class', rank(limit) === IDLE ? 'idle' : null);
  row.picture.set([limit.history.passed, limit.history.refused, limit.history.shadow_refused], `Last ten minutes: ${plural(wasAllowed, 'request')} allowed, ${count(wasRefused)} ${past}`);
  fillOnce(row.verdict, [limit.verdict, limit.who], () => verdictBadge(limit));
  // The reason speaks of one caller, and all requests are this caller.
  setText(row.why, limit.reason && isShared(limit.rule) && limit.verdict !== 'too_early' ? `All requests count as one caller: ${limit.reason}` : limit.reason ?? '');
  row.reason.hidden = !limit.reason;
}

// The table, with a field to search it. `isNew` says that the overview was read again.
export function limitsTable() {
  const search = h('input', { type: 'search', id: 'search', autocomplete: 'off', placeholder: 'name, rule, verdict', oninput: () => filter() });
  const searchBox = h('label.search', 'Find a limit ', search);
  const [body, none] = [h('tbody'), h('p.faint')];
  const rows = [];
  // With many limits, only the rows that can be seen are kept up to date.
  const far = new WeakSet();
  const watch = new IntersectionObserver((seen) => seen.forEach(({ target, isIntersecting }) => (isIntersecting ? far.delete(target) : far.add(target))), { rootMargin: '1500px' });
  let order = 'attention';
  const inWords = faint();
  const heads = COLUMNS.map(([name, text]) => {
    if (!name) return h('th', { scope: 'col' }, text);
    const choose = () => {
      order = name;
      sort();
    };
    return h('th', { scope: 'col', class: /allowed|refused|share/.test(name) && 'number', 'data-order': name }, h('button', { type: 'button', onclick: choose }, text));
  });

  function sort() {
    const by = ORDERS[order];
    const compare = by ? (a, b) => highestFirst(a.value, b.value) || a.at - b.at : (a, b) => a.text.localeCompare(b.text) || a.at - b.at;
    const keyed = state.limits.map((limit, at) => ({ at, value: by?.(limit), text: titleOf(limit) }));
    setText(inWords, `, ordered ${IN_WORDS[order]}`);
    const wanted = keyed.sort(compare).map(({ at }) => rows[at].element);
    if (wanted.some((row, index) => body.children[index] !== row) || body.children.length !== wanted.length) body.replaceChildren(...wanted);
    const way = order === 'name' ? 'ascending' : 'descending';
    heads.forEach((head) => setAttribute(head, 'aria-sort', head.dataset.order === order ? way : null));
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/);
    let left = 0;
    state.limits.forEach((limit, at) => {
      const text = `${limit.label} ${shadowOf(limit) ? 'shadow' : ''} ${limit.domain} ${limit.rule} ${limit.verdict ? verdictText(limit)[0] : ''} ${limit.algorithm}`.toLowerCase();
      const fits = words.every((word) => text.includes(word));
      left += fits;
      rows[at].element.hidden = !fits;
    });
    setText(none, state.limits.length === 0 ? 'The rules have no limits.' : left === 0 ? 'No limit has these words.' : '');
  }

  const caption = h('caption.unseen', 'All limits. The buttons in the first row change the order.');
  return {
    element: section('', 'limits', ['Limits', inWords], searchBox, h('table.limits', caption, h('thead', h('tr', ...heads)), body), none),
    close: () => watch.disconnect(),
    update(isNew) {
      while (rows.length < state.limits.length) {
        rows.push(makeRow());
        watch.observe(rows.at(-1).element);
      }
      rows.splice(state.limits.length).forEach((row) => watch.unobserve(row.element));
      state.limits.forEach((limit, at) => {
        if (rows[at].parts.limit !== limit || !far.has(rows[at].element)) updateRow(rows[at].parts, limit);
      });
      if (!isNew) return;
      // The order does not change under a pointer or under the focus, unless there are other limits.
      const isInUse = body.matches(':hover') || body.contains(document.activeElement);
      if (!isInUse || body.children.length !== rows.length) sort();
      searchBox.hidden = state.limits.length <= SEARCH_FROM;
      filter();
    },
  };
}
