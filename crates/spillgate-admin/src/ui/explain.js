// Why a request would be allowed or refused now: a form, and the answer as a picture.

import { block, button, explainLink, ownEntries, reset, scopeText, unblock, whereText } from './actions.js';
import { get, post } from './api.js';
import { bar } from './chart.js';
import { act, faint, field, h, keyOptions, onSubmit, outcome, showDone } from './dom.js';
import { duration, exact, left } from './format.js';
import { state } from './state.js';

const REASONS = {
  fits: 'It fits.',
  exceeded: 'Not enough is left now.',
  cost_above_capacity: 'It costs more than this limit ever has, so it can never pass.',
  penalty: 'A penalty for an earlier refusal has not ended.',
  wait_too_long: 'Its turn in the queue would come later than callers accept.',
  store_full: 'The store has no space for another key.',
  not_asked: 'Not asked, because another limit refuses the request for certain.',
  unsupported: 'This algorithm cannot do that.',
};
const PASSES = 'it counts, but refuses nothing.';
const OUTCOMES = {
  matched: ['✓', 'matches: this is the rule', 'good'],
  went_deeper: ['↓', 'matches, so the next entry is looked at', 'plain'],
  went_back: ['↩', 'matched, but no rule below it did, so the search went back', 'plain'],
  failed: ['✗', 'no rule matches', 'bad'],
};

function how({ how: way, pattern }) {
  if (way === 'exact') return 'exactly this value';
  if (way === 'wildcard') return ['the wildcard ', h('code', pattern ?? '')];
  return way === 'key' ? 'any value of this key' : '';
}

function stateNode(label, { remaining, reset_after_ns: after }, capacity) {
  return h('div.state', faint(label), bar('allowed').set(remaining, capacity).element,
    h('span', `${exact(remaining)} of ${exact(capacity)} left`), after ? faint(`full in ${duration(after)}`) : '');
}

function limitNode(rule, decided, number, isBlocked) {
  const limit = rule.limits[number];
  const name = limit.label;
  if (limit.replaced && !isBlocked) return h('li.decision', h('strong', name), ' is replaced by a limit of another rule.');
  const mark = decided ? (decided.allowed ? ['good', 'allows'] : decided.binding === 'enforce' ? ['bad', 'refuses'] : ['warn', 'would refuse']) : ['faint', 'not asked'];
  return h('li.decision',
    h('p', h(`span.badge.${mark[0]}`, mark[1]), ' ', h('strong', name), faint(` ${limit.summary}`)),
    decided && h('p', REASONS[decided.reason] ?? decided.reason, decided.retry_after_ns !== null ? ` It fits again in ${duration(decided.retry_after_ns)}.` : '',
      decided.delay_ns > 0 ? ` It waits ${duration(decided.delay_ns)} for its turn.` : '', decided.soft_over ? ' It passes only because of the soft share.' : ''),
    decided && decided.reason !== 'not_asked' && ['before', 'after'].map((when) => stateNode(when, decided[when], decided.capacity)));
}

function ruleNode(rule, decisions, isBlocked) {
  const notes = [rule.unlimited && 'It is unlimited: everything passes, and nothing is counted.', rule.shadow_mode && `It runs in shadow: ${PASSES}`,
    rule.quota_mode && `It runs in quota mode: ${PASSES}`, !rule.unlimited && !rule.limits.length && 'It has no limit of its own, so the request passes.',
    ...(rule.shadow_switches ?? []).map((on) => `It is in shadow ${scopeText(on.scope)}, for ${left(on.ends_in_ms)}: ${PASSES}`)];
  return h('div.rule',
    h('p', 'Rule ', h('code', rule.rule), faint(` ${rule.file}:${rule.line}`)),
    notes.filter(Boolean).map((note) => h('p', note)),
    rule.limits.length > 0 && h('ul', ...rule.limits.map((_, number) => limitNode(rule, decisions.find((one) => one.index === number), number, isBlocked))));
}

function descriptorNode(descriptor, decisions) {
  const steps = descriptor.steps.map((step) => {
    const [sign, text, tone] = OUTCOMES[step.outcome] ?? ['·', step.outcome, 'plain'];
    const [via, at] = [how(step), step.file ? faint(` ${step.file}:${step.line}`) : ''];
    return h(`li.step.level${Math.min(step.level, 5)}.${step.outcome}`,
      h(`span.sign.${tone}`, { 'aria-hidden': 'true' }, sign),
      h('span', h('code', `${step.key}=${step.value}`), ' ', h('span.how', via, via ? ' ' : '', text), at));
  });
  const left = descriptor.steps_left_out ?? 0;
  const level = Math.min(5, Math.max(0, ...descriptor.steps.filter((step) => step.outcome === 'matched').map((step) => step.level)));
  return h('section.tree', { 'aria-label': descriptor.entries.map((entry) => entry.join('=')).join(', ') },
    steps.length ? h('ol.steps', ...steps, left ? h('li.faint', `${left} more steps`) : '') : h('p', 'No rule of this domain was tried.'),
    descriptor.matched ? h(`div.level${level}`, ruleNode(descriptor.matched, decisions, descriptor.block)) : !descriptor.block && h('p', 'No rule matches these entries in this order, so nothing limits the request. The overview has the keys of all rules, in their order.'));
}

function sentence(answer) {
  const [asked] = answer.asked;
  const refusing = asked.limits.find((one) => !one.allowed && one.reason !== 'not_asked');
  const blocked = answer.descriptors.find((one) => one.block)?.block;
  if (blocked) return `Refused now by a block: ${blocked.key}=${blocked.value}, for ${left(blocked.ends_in_ms)}`;
  if (asked.allowed) return asked.limits.length ? 'Allowed now' : 'Allowed now: no limit applies to it';
  const rule = refusing && answer.descriptors[refusing.descriptor]?.matched;
  const by = rule ? ` by ${rule.limits[refusing.index]?.label ?? refusing.name} (${rule.rule})` : '';
  return `Refused now${by}${asked.retry_after_ns === null ? '' : `. Ask again in ${duration(asked.retry_after_ns)}`}`;
}

// `again` explains the request again, after an action that changes the answer.
function picture(answer, domain, entries, output, again) {
  const [asked] = answer.asked;
  const byDescriptor = (index) => asked.limits.filter((one) => one.descriptor === index);
  const isBlocked = answer.descriptors.some((one) => one.block);
  const blocks = isBlocked ? [] : ownEntries(entries, answer.descriptors[0]?.matched?.rule ?? '').map(([key, value]) => button(`Block ${key}=${value} for 10 min`, output, again(() => block({ key, value, domain, for: '10m' }))));
  return [
    h(`h2.answer.${asked.allowed ? 'good' : 'bad'}`, { tabindex: '-1' }, sentence(answer)),
    ...answer.descriptors.filter((one) => one.block).map(({ block: one }) => h('p', `The block holds ${whereText(one.domain)}, whatever the rules say.${one.reason ? ` Its reason: ${one.reason}` : ''} `,
      button('Unblock', output, again(() => unblock(one))))),
    ...answer.descriptors.map((descriptor, index) => descriptorNode(descriptor, byDescriptor(index))),
    h('p.actions', ...blocks, button('Reset its counters', output, again(() => reset(domain, entries))))];
}

export function open([domain = '', ...parts]) {
  const domains = h('select', { name: 'domain', required: true });
  const cost = h('input', { name: 'cost', type: 'number', min: '0', required: true, value: '1', inputmode: 'numeric' });
  const keys = h('datalist', { id: 'keys' });
  const list = h('div.entries');
  const output = outcome();
  const answer = h('div', { id: 'answer' });
  const ask = h('button.main', 'Explain');
  let [rules, tried] = [null, null];

  function addEntry(key = '', value = '') {
    const row = h('div.entry',
      h('label', h('span.unseen', 'Key'), h('input', { name: 'key', required: true, placeholder: 'key, for example user_id', list: 'keys', value: key })),
      h('span', { 'aria-hidden': 'true' }, '='),
      h('label', h('span.unseen', 'Value'), h('input', { name: 'value', placeholder: 'value, for example 7', value })),
      h('button.quiet', { type: 'button', 'aria-label': 'Remove this entry', onclick: () => {
        if (list.children.length > 1) row.remove();
      } }, '✕'));
    list.append(row);
    return row;
  }

  const known = () => keys.replaceChildren(...keyOptions((rules ?? []).filter((rule) => rule.domain === domains.value).map((rule) => rule.rule)));

  const form = h('form.card.explain', { autocomplete: 'off' },
    h('div.row', field('Domain', domains), field('Cost', cost)),
    h('fieldset', h('legend', 'Entries, in the order of the request'), list,
      h('button.quiet', { type: 'button', onclick: () => addEntry().querySelector('input').focus() }, '+ Another entry')),
    keys, h('div.row', ask, output));

  async function explain() {
    const entries = [...list.children].map((row) => [...row.querySelectorAll('input')].map((input) => input.value));
    history.replaceState(null, '', explainLink(domains.value, entries));
    const result = await post('/explain', { domain: domains.value, descriptors: [entries], cost: Number(cost.value) });
    answer.replaceChildren(...picture(result, domains.value, entries, output, again).flat().filter(Boolean));
    answer.querySelector('h2').focus({ preventScroll: true });
    return '';
  }

  const again = (action) => async () => {
    const done = await action();
    await explain();
    return done;
  };

  onSubmit(form, () => {
    answer.replaceChildren();
    act(ask, output, explain);
  });
  domains.addEventListener('change', known);
  if (!parts.length) addEntry();
  for (let at = 0; at < parts.length; at += 2) addEntry(parts[at], parts[at + 1] ?? '');

  const readRules = () => act(ask, output, async () => {
    const answered = await get('/rules');
    rules = answered.rules;
    domains.append(...answered.domains.map(({ name }) => h('option', { selected: name === domain }, name)));
    known();
    return '';
  }).then(() => {
    // Meanwhile another view can be open.
    const isReady = domains.value && form.isConnected;
    if (isReady && parts.length && parts.every(Boolean)) form.requestSubmit();
    else if (isReady) [...list.querySelectorAll('input')].find((input) => !input.value)?.focus();
    if (rules && domain && domains.value !== domain) showDone(output, `The rules have no domain ${domain} now.`);
  });
  readRules();
  return {
    title: 'Explain',
    update() {
      // After a failure, the next overview leads to another try.
      if (!rules && tried && tried !== state.overview) readRules();
      tried = state.overview;
    },
    element: h('div.view.narrow', h('h1', 'Explain a request'),
      h('p.faint', 'Why would this request be allowed or refused now? Nothing is counted by asking.'), form, answer),
  };
}
