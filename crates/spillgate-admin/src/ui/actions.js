// What an operator can change, with the words that say what was done.

import { post } from './api.js';
import { act, faint, field, h, onSubmit, outcome, select } from './dom.js';
import { entryText, left, pathEntries, plural, time } from './format.js';
import { nowMs, read, state } from './state.js';

export const DURATIONS = [['1m', '1 minute'], ['10m', '10 minutes'], ['30m', '30 minutes'], ['1h', '1 hour'], ['1d', '1 day'], ['7d', '7 days'], ['30d', '30 days']];

export const scopeText = (scope) => (scope === 'fleet' ? 'on all servers of the fleet' : 'on this server only');

const until = (entry) => `until ${time(entry.until_ms)} (${left(entry.ends_in_ms ?? entry.until_ms - state.at_ms)})`;

// The time that is left is written at once, and its place has one width: else a button behind it would move under the pointer.
export const ends = (until_ms) => h('span', h('strong', { 'data-until': until_ms }, left(until_ms - nowMs())), faint(` until ${time(until_ms)}`));

export const whereText = (domain) => (domain ?? null) === null ? 'in all domains' : `in the domain ${domain}`;

export async function block(request) {
  const { block: made, scope } = await post('/block', request);
  await read();
  const isKnown = state.overview.limits_left_out > 0 || state.limits.some(({ rule }) => pathEntries(rule).some(([key]) => key === made.key));
  return `${entryText(made.key, made.value)} is blocked ${whereText(made.domain)} ${until(made)}, ${scopeText(scope)}.${isKnown ? '' : ` No limit has the key ${made.key}: check that requests have it.`}`;
}

export async function unblock({ key, value, domain }) {
  const { unblocked } = await post('/unblock', domain === null ? { key, value } : { key, value, domain });
  await read();
  return domain === null ? `All blocks of ${entryText(key, value)} have ended: ${unblocked}.` : `The block of ${entryText(key, value)} ${whereText(domain)} has ended.`;
}

// A block in words, and the way to end it. `again` shows the view again after that.
export function blockNode(one, output, again = (action) => action) {
  const entry = entryText(one.key, one.value);
  return h('p.blocked', h('span.badge.bad', 'blocked'), ' ', h('code', entry), ` ${whereText(one.domain)}, since ${time(one.since_ms)}. Left: `, ends(one.until_ms),
    `. This server has refused ${plural(one.refused, 'request')} because of it.${one.reason ? ` Reason: ${one.reason}` : ''} `,
    button(['Unblock', h('span.unseen', ` ${entry}`)], output, again(() => unblock(one))));
}

export async function shadow(request) {
  const { shadow: made } = await post('/shadow', request);
  await read();
  const [what, s] = request.rule === 'all' ? ['All rules', ''] : [`The rule ${request.rule.path}`, 's'];
  if (!request.on) return `The shadow of ${what[0].toLowerCase()}${what.slice(1)} has ended.`;
  return `${what} count${s}, but refuse${s} nothing ${until(made)}, ${scopeText(made.scopes[0])}.`;
}

export async function reset(domain, ...descriptors) {
  const { reset: number, reset_also_in: others = [] } = await post('/reset', { domain, descriptors });
  const more = others.length > 0 ? ` Other regions share it: repeat the reset in ${others.join(', ')}.` : '';
  return number > 0 ? `All of its limits are full again (${number}).${more}` : 'There was nothing to reset.';
}

const address = (parts) => `#/explain/${parts.map((text) => encodeURIComponent(text ?? '')).join('/')}`;

// Between two descriptors is an empty key.
export const explainLink = (domain, ...descriptors) => address([domain, ...descriptors.flatMap((entries, index) => [...(index ? [''] : []), ...entries.flat()])]);

// Explains the next request of the caller with this hash.
const hashLink = (hash) => address(['', hash]);

export function button(text, output, action) {
  const node = h('button', { type: 'button' }, text);
  node.addEventListener('click', () => act(node, output, action));
  return node;
}

// The entries of a caller that tell it apart: those whose value the rule does not name. A block on another entry refuses everybody.
export function ownEntries(entries, path) {
  const levels = pathEntries(path);
  return entries.filter(([key], index) => {
    const [own, value] = levels[index] ?? [];
    return own !== key || value === null || value.includes('*');
  });
}

// `blocked` is the block that refuses the caller now, if there is one.
export function callerActions(domain, entries, path, output, blocked) {
  const owns = ownEntries(entries, path);
  const own = owns.at(-1);
  const [key, value] = own ?? entries.at(-1);
  const name = entryText(key, value);
  return h('span.actions',
    h('a.button', { href: explainLink(domain, entries) }, 'Explain', h('span.unseen', ` ${name}`)),
    blocked ? button(['Unblock', h('span.unseen', ` ${entryText(blocked.key, blocked.value)}`)], output, () => unblock(blocked))
      // With one entry, the row says already what would be blocked.
      : own && button(['Block ', h(owns.length > 1 ? 'span' : 'span.unseen', name), ' for 10 min'], output, () => block({ key, value, domain, for: '10m' })),
    button(['Reset', h('span.unseen', ` ${name}`)], output, () => reset(domain, entries)));
}

// For a caller of whom only the hash is known. The server waits until it sends a request.
export function hashActions(hash, output) {
  const name = h('span.unseen', ` the caller ${hash}`);
  return h('span.actions', h('a.button', { href: hashLink(hash) }, 'Explain', name.cloneNode(true)), button(['Block for 10 min', name], output, () => block({ hash, for: '10m' })));
}

// The form of a shadow switch. `rule` is {domain, path} or "all".
export function shadowForm(rule, confirm) {
  const output = outcome();
  const time = select('for', DURATIONS, '30m');
  const scope = select('scope', scopes(), state.shadows?.scope_default ?? 'server');
  const start = h('button', { class: rule === 'all' ? null : 'main' }, rule === 'all' ? 'Put all rules into shadow' : 'Put into shadow');
  const form = h('form.inline', field('For', time), field('Where', scope), start);
  onSubmit(form, async () => {
    if (confirm && !(await confirm(time.selectedOptions[0].textContent))) return;
    act(start, output, () => shadow({ rule, on: true, for: time.value, scope: scope.value }));
  });
  return { form, output };
}

function scopes() {
  const fleet = state.shadows?.scope_default === 'fleet';
  return [...(fleet ? [['fleet', 'all servers of the fleet']] : []), ['server', 'this server only']];
}
