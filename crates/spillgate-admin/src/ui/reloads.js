// The last reloads of the rules, with what each has changed.

import { get } from './api.js';
import { fillOnce, h, outcome, showError } from './dom.js';
import { plural, time } from './format.js';
import { state } from './state.js';

// What a line is about, with its sign and its tone.
const KINDS = [[/ removed\b/, 'removed', '−', 'bad'], [/ added\b/, 'added', '+', 'good'], [/./, 'changed', '~', 'plain']];

// A line such as "api: user_id (a.yaml:3): limit x changed: 5 -> 6". Both parts have lines of their own.
function change(line) {
  const [, kind, sign, tone] = KINDS.find(([words]) => words.test(line)) ?? KINDS[2];
  const [, before, old, now] = /^(.*? changed: )(.*?) -> (.*)$/.exec(line) ?? [];
  const text = before === undefined ? line : [before, h('del', old), h('ins', now)];
  return h(`li.${kind}`, h(`span.sign.${tone}`, { 'aria-hidden': 'true' }, sign), h('span', text));
}

function lines({ lines: shown, left_out: left }, make, name) {
  if (!shown.length) return null;
  return h('ul', { class: name }, ...shown.map(make), left > 0 && h('li', `and ${plural(left, 'more line')}, see the log`));
}

function reloadNode(reload) {
  const isGood = reload.outcome === 'reloaded';
  const { loaded, changes } = reload;
  return h('article.card',
    h('h2', h('time', { datetime: new Date(reload.at_ms).toISOString() }, time(reload.at_ms)), h(`span.badge.${isGood ? 'good' : 'bad'}`, isGood ? 'in use' : 'failed')),
    h('p.faint', loaded ? `${plural(loaded.files, 'file')}, ${plural(loaded.domains, 'domain')}, ${plural(loaded.rules, 'rule')}${loaded.warnings ? `, ${plural(loaded.warnings, 'warning')}` : ''}` : 'The server goes on with the earlier rules.'),
    lines(reload.errors, (line) => h('li.outcome.bad', line), 'errors'),
    lines(changes, change, 'changes') ?? (isGood && h('p', 'Nothing has changed.')));
}

export function open() {
  const list = h('div.list');
  const error = outcome();
  let [shown, tried] = [null, null];
  async function show(key) {
    try {
      const { reloads } = await get('/reloads');
      shown = key;
      error.replaceChildren();
      fillOnce(list, reloads, () => (reloads.length ? reloads.map(reloadNode) : h('p', 'The rules were not reloaded since the server started. SIGHUP reloads them.')));
    } catch (failure) {
      showError(error, failure);
    }
  }
  return {
    title: 'Reloads',
    element: h('div.view.narrow', h('h1', 'Reloads of the rules'), h('p.faint', 'The last 32, the newest first.'), error, list),
    update() {
      // After a failure, the next overview leads to another try.
      if (!state.overview || tried === state.overview) return;
      tried = state.overview;
      const key = `${tried.server.id} ${tried.changes}`;
      if (shown !== key) show(key);
    },
  };
}
