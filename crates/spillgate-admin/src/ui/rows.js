// The table of all limits: each as a row, those that need attention first.

import { bar, spark } from './chart.js';
import { faint, fillOnce, h, section, setAttribute, setText } from './dom.js';
import { count, plural, rate, share, verdict as verdictText } from './format.js';
import { overRate, passedRate, shadowOf, state, sum } from './state.js';

const SEARCH_FROM = 10;
// Verdicts that ask for attention, and those that say nothing about the limit.
const URGENT = ['above_rate', 'never_passes', 'bursts'];
const UNKNOWN = [null, 'too_early', 'unclear'];
// Without a verdict, a limit that refuses more than this share needs attention. "Effective" has the same bound.
const SHARE_MAX = 0.1;
const [IDLE, BUSY, REFUSES, JUDGED] = [0, 1, 2, 3];

export const limitLink = (limit) => `#/limit/${[limit.domain, limit.rule, limit.number].map(encodeURIComponent).join('/')}`;

// The order of each column: the highest comes first.
const ORDERS = {
  attention: (limit) => rank(limit) * 1e15 + (rank(limit) === JUDGED ? limit.attention * 1e12 : 0) + (overRate(limit) ?? 0),
  name: null,
  allowed: (limit) => passedRate(limit) ?? 0,
  refused: (limit) => overRate(limit) ?? 0,
  share: (limit) => refusedShare(limit) ?? -1,
};
const COLUMNS = [['name', 'Limit'], ['allowed', 'Allowed / s'], ['refused', 'Refused / s'], [null, 'Last 10 minutes'], ['share', 'Share refused'], ['attention', 'Verdict']];

// Limits with a verdict that asks for attention come first, then those that refuse much without a verdict. Idle ones are last.
function rank(limit) {
  if (URGENT.includes(limit.verdict)) return JUDGED;
  const part = refusedShare(limit);
  if (UNKNOWN.includes(limit.verdict) && part > SHARE_MAX) return REFUSES;
  return part === null ? IDLE : BUSY;
}

// The limits that need attention, the first one first. docs/src/operating/page.md says which these are.
export const needy = () => state.limits.filter((limit) => rank(limit) >= REFUSES).sort((a, b) => ORDERS.attention(b) - ORDERS.attention(a));

// The share of the last ten minutes, or of the last seconds if there is no history yet. Null without requests.
export function refusedShare(limit) {
  const [allowed, refused] = tenMinutes(limit);
  return allowed + refused > 0 ? refused / (allowed + refused) : null;
}

function tenMinutes(limit) {
  const { passed, over } = limit.history;
  if (passed.length) return [sum(passed), sum(over)];
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

function makeRow() {
  const link = h('a');
  const [allowed, refused] = [h('td.number'), h('td.number')];
  const [domain, parents, own, small] = [h('span.domain'), h('span.parents'), h('span.own'), h('span')];
  const path = h('span.path.faint', domain, parents, own, small);
  // A long reason is cut, and a click shows all of it.
  const why = h('summary');
  const reason = h('details.reason', why);
  const [refusedText, verdict, mark] = [h('span'), h('span'), h('span')];
  const picture = spark(['refused', 'allowed'], 120, 28);
  const part = bar('refused');
  const shareCell = h('td.number', refusedText, part.element);
  const element = h('tr', h('th', { scope: 'row' }, h('span.title', link, mark), path), allowed, refused,
    h('td.picture', picture.element), shareCell, h('td.verdict', verdict, reason));
  COLUMNS.forEach(([, text], index) => index > 0 && element.children[index].setAttribute('data-head', text));
  const parts = { element, link, path, domain, parents, own, small, allowed, refused, refusedText, part, picture, verdict, reason, why, mark };
  return { element, parts };
}

function updateRow(row, limit) {
  const [allowed, refused] = [passedRate(limit), overRate(limit)];
  setText(row.allowed, rate(allowed));
  setText(row.refused, rate(refused));
  const shadow = shadowOf(limit)?.by ?? '';
  setAttribute(row.refused, 'class', refused > 0 && !shadow ? 'number over' : 'number');
  fillOnce(row.mark, shadow, () => shadowMark(limit));
  if (row.limit === limit) return;
  row.limit = limit;
  setAttribute(row.link, 'href', limitLink(limit));
  setText(row.link, limit.label);
  setAttribute(row.link, 'title', limit.label);
  // A narrow column cuts the parents first, because the last entry says more of the rule.
  const at = limit.rule.lastIndexOf(' > ') + 1;
  setText(row.domain, `${limit.domain}: `);
  setText(row.parents, limit.rule.slice(0, at));
  setText(row.own, limit.rule.slice(at));
  setText(row.small, limit.label === limit.summary.slice(0, limit.label.length) ? limit.summary.slice(limit.label.length) : ` · ${limit.summary}`);
  setAttribute(row.path, 'title', `${limit.domain}: ${limit.rule} · ${limit.summary}`);
  const [wasAllowed, wasRefused] = tenMinutes(limit);
  setText(row.refusedText, share(wasRefused, wasAllowed + wasRefused));
  row.part.set(wasRefused, wasAllowed + wasRefused);
  // A narrow screen leaves out the zeros of an idle limit.
  setAttribute(row.element, 'class', rank(limit) === IDLE ? 'idle' : null);
  row.picture.set([limit.history.passed, limit.history.over], `Last ten minutes: ${plural(wasAllowed, 'request')} allowed, ${count(wasRefused)} refused`);
  fillOnce(row.verdict, [limit.verdict, limit.who], () => verdictBadge(limit));
  setText(row.why, limit.reason ?? '');
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
    const compare = by ? (a, b) => b.value - a.value || a.at - b.at : (a, b) => a.text.localeCompare(b.text) || a.at - b.at;
    const keyed = state.limits.map((limit, at) => ({ at, value: by ? by(limit) : 0, text: limit.label }));
    const wanted = keyed.sort(compare).map(({ at }) => rows[at].element);
    if (wanted.some((row, index) => body.children[index] !== row) || body.children.length !== wanted.length) body.replaceChildren(...wanted);
    const way = order === 'name' ? 'ascending' : 'descending';
    heads.forEach((head) => setAttribute(head, 'aria-sort', head.dataset.order === order ? way : null));
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/);
    let left = 0;
    state.limits.forEach((limit, at) => {
      const text = `${limit.label} ${limit.domain} ${limit.rule} ${limit.verdict ? verdictText(limit)[0] : ''} ${limit.algorithm}`.toLowerCase();
      const fits = words.every((word) => text.includes(word));
      left += fits;
      rows[at].element.hidden = !fits;
    });
    setText(none, state.limits.length === 0 ? 'The rules have no limits.' : left === 0 ? 'No limit has these words.' : '');
  }

  const caption = h('caption.unseen', 'All limits. The buttons in the first row change the order.');
  return {
    element: section('', 'limits', 'Limits', searchBox, h('table.limits', caption, h('thead', h('tr', ...heads)), body), none),
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
