// Everything about one caller: all limits and blocks that have one of its values.

import { blockNode, button, explainLink, reset } from './actions.js';
import { post } from './api.js';
import { act, answerTime, faint, field, h, onSubmit, outcome, table } from './dom.js';
import { count, duration, entryText, pathEntries, plural } from './format.js';

// A server takes at most this many values.
const VALUES_MAX = 16;

// The entries of a request as values of a caller. A caller has one value of a key.
export const valuesOf = (entries) => [...new Map(entries).entries()].slice(0, VALUES_MAX).map(([key, value]) => ({ key, value }));

// The values that an operator typed: `key=value`, or only a value. A value can contain a "=" too.
function typed(texts, rules) {
  const keys = new Set((rules ?? []).flatMap(({ rule }) => pathEntries(rule).map(([key]) => key)));
  const values = texts.flatMap((text) => {
    // A key in quotes is never a part of a value.
    const [[quoted, of]] = pathEntries(text);
    if (text.startsWith('"') && of !== null) return [{ key: quoted, value: of }];
    const at = text.indexOf('=');
    const entry = { key: text.slice(0, at), value: text.slice(at + 1) };
    if (at > 0 && keys.has(entry.key)) return [entry];
    return at > 0 ? [entry, { value: text }] : [{ value: text }];
  });
  return values.slice(0, VALUES_MAX);
}

const isRefusing = (limit) => !limit.allowed && limit.binding === 'enforce';

function refusal(limit) {
  if (limit.allowed) return '';
  if (!isRefusing(limit)) return h('span.badge.warn', 'would refuse, but is in shadow');
  if (!limit.capacity) return h('span.badge.bad', 'always');
  return h('span.badge.bad', limit.retry_after_ns === null ? 'for an unknown time' : `for ${duration(limit.retry_after_ns)}`);
}

function row({ limit, entries, shared, ...seen }, output, again) {
  return [[h('strong', limit.label), faint(` ${limit.domain}: ${limit.rule}${shared ? ', shared by all callers' : ''}`)], h('code', entries.map((entry) => entryText(...entry)).join(', ')),
    ['number', `${count(seen.used)} of ${count(seen.capacity)}`], ['number', count(seen.remaining)], refusal(seen),
    h('span.actions', h('a.button', { href: explainLink(limit.domain, entries) }, 'Explain', h('span.unseen', ` ${limit.label}`)), button(['Reset', h('span.unseen', ` ${limit.label}`)], output, again(() => reset(limit.domain, entries))))];
}

const more = (number, what) => number > 0 && h('p.faint', `and ${plural(number, what)}`);

const limitTable = (caption, entries, limits, output, again) => table('', caption, ['Limit', entries, 'Used', 'Left', 'Refuses', 'Do'], limits.map((one) => row(one, output, again)));

const text = ({ message, help }) => `${message[0].toUpperCase()}${message.slice(1)}: ${help}`;

// Limits that nobody has alone, and keys that are probably misspelt.
const otherNodes = ({ shared, shared_left_out: left, unknown }, output, again) => [
  ...unknown.map((name) => h('p.warn', text(name))),
  shared.length > 0 && limitTable(h('caption', 'Limits that all callers share, if their requests have these entries'), 'Entries', shared, output, again),
  more(left, 'more shared limit')].filter(Boolean);

// The blocks and limits of a caller. `again` shows them again, after an action that changes them.
export function callerNodes(seen, output, again) {
  const { blocks, limits, unread } = seen;
  return [
    ...blocks.map((one) => blockNode(one, output, again)),
    more(seen.blocks_left_out, 'more block'),
    limits.length > 0 && limitTable(h('caption.unseen', 'Limits of the caller'), 'Counter', limits, output, again),
    more(seen.limits_left_out, 'more limit'),
    unread.length > 0 && h('p', 'Some limits count by further keys. To see them, add a value for: ', unread.flatMap(({ domain, rule, missing }, index) => [index ? '; ' : '', h('code', missing.join(', ')), faint(` (${domain}: ${rule})`)])),
    more(seen.unread_left_out, 'more rule')].filter(Boolean);
}

function sentence({ blocks, limits, shared, unknown, unused_left_out: unused }) {
  const refusing = limits.filter(isRefusing).length;
  const by = [blocks.length && plural(blocks.length, 'block'), refusing && plural(refusing, 'limit')].filter(Boolean);
  if (by.length) return ['bad', `Refused now by ${by.join(' and ')}`];
  if (!limits.length && unknown.length) return ['warn', text(unknown[0])];
  const may = shared.filter(isRefusing).length;
  if (may) return ['warn', `Nothing with these values refuses now, but ${plural(may, 'shared limit')} may`];
  if (!limits.length && unused) return ['good', `No block has these values, and they have used nothing of ${plural(unused, 'limit')} now`];
  return limits.length ? ['good', 'Nothing refuses this caller now'] : ['warn', 'No limit and no block has these values'];
}

// The form that asks about a caller. `rules` returns the rules, or null before they are known.
export function callerForm(rules) {
  const domain = h('select', { name: 'where' }, h('option', { value: '' }, 'all domains'));
  const list = h('div');
  const [output, found, answered] = [outcome(), h('div'), answerTime()];
  const ask = h('button.main', 'Show its limits');
  const addValue = () => {
    const input = h('input', { name: 'caller', required: true, placeholder: 'user_id=7 or 203.0.113.9' });
    list.append(field(list.children.length ? 'Another value' : 'Value', input));
    return input;
  };
  addValue();
  const form = h('form.card.explain', { autocomplete: 'off' }, h('div.row', field('Where', domain)), list,
    h('div.row', h('button.quiet', { type: 'button', onclick: () => list.children.length < VALUES_MAX && addValue().focus() }, '+ Another value')), h('div.row', ask, output));
  async function show() {
    const values = typed([...list.querySelectorAll('input')].map((input) => input.value.trim()), rules());
    // The name of a domain has a letter before it, so that none is the empty text, which means all.
    const seen = await post('/caller', domain.value ? { domain: domain.value.slice(1), values } : { values });
    const [tone, text] = sentence(seen);
    answered.set();
    found.replaceChildren(h(`h3.answer.${tone}`, { tabindex: '-1' }, text), answered.element, ...callerNodes(seen, output, again), ...otherNodes(seen, output, again));
    found.querySelector('h3').focus({ preventScroll: true });
    return '';
  }
  const again = (action) => async () => {
    const done = await action();
    await show();
    return done;
  };
  onSubmit(form, () => act(ask, output, show));
  return {
    element: h('div', form, found),
    close: answered.close,
    known: (domains) => domain.append(...domains.map(({ name }) => h('option', { value: `d${name}` }, `domain ${name}`))),
  };
}
