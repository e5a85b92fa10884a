// Why a request would be allowed or refused now: a form, and the answer as a picture. And all limits of one caller.

import { block, blockNode, button, explainLink, ownEntries, reset, scopeText } from './actions.js';
import { callerForm, callerNodes, valuesOf } from './caller.js';
import { get, post, postText } from './api.js';
import { bar } from './chart.js';
import { act, answerTime, faint, field, h, keyOptions, onSubmit, outcome, section, showDone } from './dom.js';
import { duration, entryText, exact, left, pathEntries, plural, time } from './format.js';
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

// What other regions have charged of a limit that they share.
function toldText({ span_start_ms: since, by }) {
  const units = by.map((one) => `${exact(one.units)} by ${one.region ?? 'a region that is not in regions.peers'}`);
  return `Charged by other regions since ${time(since)}: ${units.join(', ') || 'nothing'}.`;
}

function limitNode(rule, decided, number) {
  const limit = rule.limits[number];
  const name = limit.label;
  if (limit.replaced) return h('li.decision', h('strong', name), ' is replaced by a limit of another rule.');
  const mark = decided ? (decided.allowed ? ['good', 'allows'] : decided.binding === 'enforce' ? ['bad', 'refuses'] : ['warn', 'would refuse']) : ['faint', 'not asked'];
  return h('li.decision',
    h('p', h(`span.badge.${mark[0]}`, mark[1]), ' ', h('strong', name), faint(` ${limit.summary}`)),
    !decided && h('p', 'Not asked, because the request is refused by a block.'),
    decided && h('p', REASONS[decided.reason] ?? decided.reason, decided.retry_after_ns !== null ? ` It fits again in ${duration(decided.retry_after_ns)}.` : '',
      decided.delay_ns > 0 ? ` It waits ${duration(decided.delay_ns)} for its turn.` : '', decided.soft_over ? ' It passes only because of the soft share.' : ''),
    decided?.told && h('p', toldText(decided.told)),
    decided && decided.reason !== 'not_asked' && ['before', 'after'].map((when) => stateNode(when, decided[when], decided.capacity)));
}

function ruleNode(rule, decisions) {
  const notes = [rule.unlimited && 'It is unlimited: everything passes, and nothing is counted.', rule.shadow_mode && `It runs in shadow: ${PASSES}`,
    rule.quota_mode && `It runs in quota mode: ${PASSES}`, !rule.unlimited && !rule.limits.length && 'It has no limit of its own, so the request passes.',
    ...(rule.shadow_switches ?? []).map((on) => `It is in shadow ${scopeText(on.scope)}, for ${left(on.ends_in_ms)}: ${PASSES}`)];
  return h('div.rule',
    h('p', 'Rule ', h('code', rule.rule), faint(` ${rule.file}:${rule.line}`)),
    notes.filter(Boolean).map((note) => h('p', note)),
    rule.limits.length > 0 && h('ul', ...rule.limits.map((_, number) => limitNode(rule, decisions.find((one) => one.index === number), number))));
}

function descriptorNode(descriptor, decisions) {
  const steps = descriptor.steps.map((step) => {
    const [sign, text, tone] = OUTCOMES[step.outcome] ?? ['·', step.outcome, 'plain'];
    const [via, at] = [how(step), step.file ? faint(` ${step.file}:${step.line}`) : ''];
    return h(`li.step.level${Math.min(step.level, 5)}.${step.outcome}`,
      h(`span.sign.${tone}`, { 'aria-hidden': 'true' }, sign),
      h('span', h('code', entryText(step.key, step.value)), ' ', h('span.how', via, via ? ' ' : '', text), at));
  });
  const left = descriptor.steps_left_out ?? 0;
  const level = Math.min(5, Math.max(0, ...descriptor.steps.filter((step) => step.outcome === 'matched').map((step) => step.level)));
  return h('section.tree', { 'aria-label': descriptor.entries.map((entry) => entryText(...entry)).join(', ') },
    steps.length ? h('ol.steps', ...steps, left ? h('li.faint', `${left} more steps`) : '') : h('p', 'No rule of this domain was tried.'),
    descriptor.matched ? h(`div.level${level}`, ruleNode(descriptor.matched, decisions)) : !descriptor.block && h('p', 'No rule matches these entries in this order, so no limit counts this descriptor.'));
}

const blockOf = (answer) => answer.descriptors.map((one) => one.block).filter(Boolean).sort((a, b) => b.ends_in_ms - a.ends_in_ms)[0];

// The answer in one sentence, with its tone.
function sentence(answer) {
  const [asked] = answer.asked;
  const blocked = blockOf(answer);
  if (blocked) return ['bad', `Refused now by a block: ${entryText(blocked.key, blocked.value)}, for ${left(blocked.ends_in_ms)}`];
  if (!asked.limits.length && answer.descriptors.every((one) => !one.matched)) return ['warn', 'No limit and no block matches this request, so it passes'];
  if (asked.allowed) return ['good', asked.limits.length ? 'Allowed now' : 'Allowed now: its rules have no limit'];
  // A limit in shadow refuses nothing. Of the others, the one with the longest wait says when to ask again.
  const wait = (one) => one.retry_after_ns ?? Infinity;
  const [refusing] = asked.limits.filter((one) => !one.allowed && one.binding === 'enforce' && one.reason !== 'not_asked').sort((a, b) => wait(b) - wait(a));
  const rule = refusing && answer.descriptors[refusing.descriptor]?.matched;
  const by = rule ? ` by ${rule.limits[refusing.index]?.label ?? refusing.name} (${rule.rule})` : '';
  return ['bad', `Refused now${by}${asked.retry_after_ns === null ? '' : `. Ask again in ${duration(asked.retry_after_ns)}`}`];
}

// The keys of the rules, for a request that matches none of them.
function knownNode({ paths, left_out: more }) {
  if (!paths.length) return h('p', 'No rule of this domain has a limit.');
  return h('p', 'The rules with limits of this domain have these keys, in this order: ', paths.flatMap((path, index) => [index ? ', ' : '', h('code', path)]), more ? ` and ${plural(more, 'more rule')}.` : '.');
}

// `again` explains the request again, after an action that changes the answer.
function picture(answer, output, again) {
  const [asked] = answer.asked;
  const { domain, descriptors } = answer;
  const [tone, text] = sentence(answer);
  const byDescriptor = (index) => asked.limits.filter((one) => one.descriptor === index);
  const isBlocked = Boolean(blockOf(answer));
  // A block on a value that a rule names would refuse everybody. A value with a * is the wildcard of a rule: a block holds for
  // this text only, so it would refuse nobody.
  const named = new Set(answer.known.paths.flatMap(pathEntries).filter(([, value]) => value !== null).map((entry) => entryText(...entry)));
  const own = new Map(descriptors.flatMap(({ entries, matched }) => ownEntries(entries, matched?.rule ?? '')).map((entry) => [entryText(...entry), entry]).filter(([name, [, value]]) => !named.has(name) && !value.includes('*')));
  const blocks = isBlocked ? [] : [...own].map(([name, [key, value]]) => button(`Block ${name} for 10 min`, output, again(() => block({ key, value, domain, for: '10m' }))));
  const counted = descriptors.filter((one) => one.matched).map((one) => one.entries);
  return [
    h(`h2.answer.${tone}`, { tabindex: '-1' }, text),
    ...descriptors.filter((one) => one.block).map(({ block: one }) => blockNode(one, output, again)),
    isBlocked && h('p', 'A block holds whatever the rules say.'),
    ...descriptors.map((descriptor, index) => descriptorNode(descriptor, byDescriptor(index))),
    descriptors.some((one) => !one.matched) && !isBlocked && knownNode(answer.known),
    h('p.actions', ...blocks, counted.length > 0 && button('Reset its counters', output, again(() => reset(domain, ...counted))))];
}

// The descriptors of an address: keys and values, with an empty key between two descriptors.
function descriptorsOf(parts) {
  const descriptors = [[]];
  for (let at = 0; at < parts.length;) {
    if (parts[at] === '' && descriptors.at(-1).length) {
      descriptors.push([]);
      at += 1;
    } else {
      descriptors.at(-1).push([parts[at], parts[at + 1] ?? '']);
      at += 2;
    }
  }
  return descriptors.filter((entries) => entries.length);
}

export function open([domain = '', ...parts]) {
  // Without a domain, the address has the hash of a caller.
  const hash = domain === '' && parts.length === 1 ? parts[0] : null;
  const given = hash === null ? descriptorsOf(parts) : [];
  const domains = h('select', { name: 'domain', required: true });
  const cost = h('input', { name: 'cost', type: 'number', min: '0', required: true, value: '1', inputmode: 'numeric' });
  const keys = h('datalist', { id: 'keys' });
  const list = h('div');
  const [output, pasted] = [outcome(), outcome()];
  const [answer, answered] = [h('div', { id: 'answer' }), answerTime()];
  const ask = h('button.main', 'Explain');
  let [rules, tried] = [null, null];

  function addEntry(entries, [key, value] = ['', '']) {
    const row = h('div.entry',
      h('label', h('span.unseen', 'Key'), h('input', { name: 'key', required: true, placeholder: 'key, for example user_id', list: 'keys', value: key })),
      h('span', { 'aria-hidden': 'true' }, '='),
      h('label', h('span.unseen', 'Value'), h('input', { name: 'value', placeholder: 'value, for example 7', value })),
      h('button.quiet', { type: 'button', 'aria-label': 'Remove this entry', onclick: () => {
        if (entries.children.length > 1) row.remove();
        else if (list.children.length > 1) entries.closest('fieldset').remove();
        number();
      } }, '✕'));
    entries.append(row);
    return row;
  }

  function number() {
    [...list.children].forEach((node, index) => { node.querySelector('legend').textContent = `Descriptor ${index + 1}: its entries, in the order of the request`; });
  }

  function addDescriptor(given = [undefined]) {
    const entries = h('div.entries');
    const node = h('fieldset', h('legend'), entries, h('button.quiet', { type: 'button', onclick: () => addEntry(entries).querySelector('input').focus() }, '+ Another entry'));
    given.forEach((entry) => addEntry(entries, entry));
    list.append(node);
    number();
    return node;
  }

  function fill(descriptors) {
    list.replaceChildren();
    descriptors.forEach((entries) => addDescriptor(entries.length ? entries : undefined));
  }

  const read = () => [...list.children].map((node) => [...node.querySelectorAll('.entry')].map((row) => [...row.querySelectorAll('input')].map((input) => input.value)));
  const known = () => keys.replaceChildren(...keyOptions((rules ?? []).filter((rule) => rule.domain === domains.value).map((rule) => rule.rule)));

  const form = h('form.card.explain', { autocomplete: 'off' },
    h('div.row', field('Domain', domains), field('Cost', cost)),
    list,
    h('div.row', h('button.quiet', { type: 'button', onclick: () => addDescriptor().querySelector('input').focus() }, '+ Another descriptor')),
    keys, h('div.row', ask, output));
  const paste = h('input', { name: 'request', required: true, placeholder: '{"domain": "api", "descriptors": [{"user_id": "7"}]}' });
  const send = h('button', 'Explain this JSON');
  const pasteForm = h('form.card.explain', { autocomplete: 'off' }, field('Request in JSON', paste, 'as /v1/check takes it, or as Envoy sends it to /json'), h('div.row', send, pasted));

  // Shows an answer, and puts its request into the form.
  async function show(result) {
    const entries = result.descriptors.map((one) => one.entries);
    if (![...domains.options].some((one) => one.value === result.domain)) domains.append(h('option', result.domain));
    domains.value = result.domain;
    [cost.value] = result.costs;
    fill(entries);
    known();
    history.replaceState(null, '', explainLink(result.domain, ...entries));
    answer.replaceChildren(...picture(result, output, again).flat().filter(Boolean));
    answered.set();
    answer.querySelector('h2').after(answered.element);
    // Entries that are typed into a wrong descriptor match no rule, although limits refuse their caller.
    const unmatched = result.descriptors.filter((one) => !one.matched && !one.block).flatMap((one) => one.entries);
    if (unmatched.length && !blockOf(result)) await showOthers(result, unmatched);
    answer.querySelector('h2').focus({ preventScroll: true });
    return '';
  }

  async function showOthers(result, entries) {
    const seen = await post('/caller', { domain: result.domain, values: valuesOf(entries) });
    const refusing = seen.limits.filter((one) => !one.allowed && one.binding === 'enforce').length;
    if (!seen.limits.length) return;
    const heading = answer.querySelector('h2');
    const isSplit = result.descriptors.every((one) => one.entries.length === 1);
    if (refusing && result.asked[0].allowed) {
      heading.className = 'answer bad';
      heading.textContent = `No rule matches the request as it is typed, but ${plural(refusing, 'limit')} of its values ${refusing === 1 ? 'refuses' : 'refuse'} now`;
    }
    answer.append(section('', 'others', 'Limits of these values', null,
      h('p', 'No rule has all entries of a descriptor above, in this order. These limits have some of its values: ', !isSplit && button('Try each entry as a descriptor of its own', output, async () => {
        fill(result.descriptors.flatMap((one) => one.entries).map((entry) => [entry]));
        return explain();
      })), ...callerNodes(seen, output, again)));
  }

  const explain = async () => show(await post('/explain', { domain: domains.value, descriptors: read(), cost: Number(cost.value) }));

  const again = (action) => async () => {
    const done = await action();
    await explain();
    return done;
  };

  onSubmit(form, () => {
    answer.replaceChildren();
    act(ask, output, explain);
  });
  onSubmit(pasteForm, () => {
    answer.replaceChildren();
    act(send, pasted, async () => show(await postText('/explain', paste.value)));
  });
  domains.addEventListener('change', known);
  fill(given.length ? given : [[]]);
  const caller = callerForm(() => rules);

  const readRules = () => act(ask, output, async () => {
    const answered = await get('/rules');
    rules = answered.rules;
    domains.append(...answered.domains.map(({ name }) => h('option', { selected: name === domain }, name)));
    known();
    caller.known(answered.domains);
    return '';
  }).then(() => {
    // Meanwhile another view can be open.
    const isReady = domains.value && form.isConnected;
    if (isReady && hash !== null) {
      act(ask, output, async () => show(await post('/explain', { hash })));
      return;
    }
    if (isReady && given.length && given.flat(2).every(Boolean)) form.requestSubmit();
    // Somebody who types into another field already keeps the focus.
    else if (isReady && !document.activeElement.matches('input, select, button')) [...list.querySelectorAll('input')].find((input) => !input.value)?.focus();
    if (rules && domain && domains.value !== domain) showDone(output, `The rules have no domain ${domain} now.`);
  });
  readRules();
  return {
    title: 'Explain',
    close() {
      answered.close();
      caller.close();
    },
    update() {
      // After a failure, the next overview leads to another try.
      if (!rules && tried && tried !== state.overview) readRules();
      tried = state.overview;
    },
    element: h('div.view.narrow', h('h1', 'Explain a request'),
      h('p.faint', 'Why would this request be allowed or refused now? Nothing is counted by asking. A request has one or several descriptors, and each descriptor has one or several entries.'), form, answer,
      section('', 'caller', 'Everything about a caller', null,
        h('p.faint', 'All limits and blocks that have a value of the caller, whatever its requests look like.'), caller.element),
      section('', 'paste', 'Paste a request', null, pasteForm)),
  };
}
