// The last reloads, with their cause and what each has changed.

import { button } from './actions.js';
import { get, post } from './api.js';
import { fillOnce, h, outcome, showError } from './dom.js';
import { plural, time } from './format.js';
import { read, state } from './state.js';

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

// Whether a reload has loaded rules. One of tokens or settings alone loads none.
const isLoaded = ({ loaded }) => loaded !== null;

const CAUSES = { watch: 'a file has changed', signal: 'SIGHUP', request: 'an operator' };
const UNITS = { rules: 'the rules', settings: 'the settings', admin_tokens: 'the admin tokens', key_secret: 'the key secret', certificate: 'the certificate', client_ca: 'the authorities of clients' };

const unitsText = (units, how) => units.filter(({ outcome: of }) => of === how).map(({ unit }) => UNITS[unit] ?? unit).join(', ');

// What was loaded, and what stays as it was.
function summary({ loaded, units }) {
  const failed = unitsText(units, 'failed');
  const rules = loaded && `${plural(loaded.files, 'file')}, ${plural(loaded.domains, 'domain')}, ${plural(loaded.rules, 'rule')}${loaded.warnings ? `, ${plural(loaded.warnings, 'warning')}` : ''}`;
  const kept = failed && (failed === UNITS.rules ? 'The server goes on with the earlier rules.' : `As before: ${failed}.`);
  const noted = unitsText(units, 'noted');
  const waits = noted && `Changed, but taken only at a restart: ${noted}.`;
  return [rules, kept, waits].filter(Boolean).join('. ') || `Read again: ${unitsText(units, 'reloaded')}.`;
}

// `badge` says what became of the rules of a reload that has loaded them.
function reloadNode(reload, badge) {
  const isGood = reload.outcome !== 'failed';
  const shown = isLoaded(reload) ? badge : 'read';
  return h('article.card',
    h('h2', h('time', { datetime: new Date(reload.at_ms).toISOString() }, time(reload.at_ms)), h(`span.badge.${!isGood ? 'bad' : shown === IN_USE ? 'good' : 'faint'}`, isGood ? shown : 'failed')),
    h('p.faint', `Cause: ${CAUSES[reload.cause] ?? reload.cause}. ${summary(reload)}`),
    lines(reload.errors, (line) => h('li.outcome.bad', line), 'errors'),
    lines(reload.changes, change, 'changes') ?? (reload.outcome === 'reloaded' && h('p', 'Nothing has changed.')));
}

const IN_USE = 'in use';

// All reloads, the newest first. Only the rules of the newest one that has loaded rules are in use.
function reloadNodes(reloads) {
  let next = null;
  return reloads.map((reload) => {
    const node = reloadNode(reload, next ? `replaced by the reload of ${time(next.at_ms)}` : IN_USE);
    if (isLoaded(reload)) next = reload;
    return node;
  });
}

// The server can take 10 seconds to read its files, and can be busy with another reload before.
const RELOAD_MS = 60_000;

const fileError = ({ message, file, line, column, excerpt, help }) => h('article.card',
  h('p', h('strong', message)), file && h('p.faint', line === null ? file : `${file}:${line}:${column}`), excerpt && h('pre', { tabindex: '0', 'aria-label': 'The text of the file' }, excerpt), help && h('p', `What to do: ${help}`));

// What a reload has changed, or the errors of the files.
function resultNodes({ reload, body }) {
  if (reload) return [reloadNode(reload, 'loaded'), lines(reload.notes, (line) => h('li', line), 'notes')].filter(Boolean);
  const left = body.errors_left_out ?? 0;
  return [...body.errors.map(fileError), left > 0 && h('p', `and ${plural(left, 'more error')}`), lines(body.changes, change, 'changes'), lines(body.notes, (line) => h('li', line), 'notes')].filter(Boolean);
}

export function open() {
  const list = h('div.list');
  const error = outcome();
  const [done, result] = [outcome(), h('div.list')];
  const now = button('Reload now', done, async () => {
    result.replaceChildren();
    try {
      const answer = await post('/reload', {}, RELOAD_MS);
      result.replaceChildren(...resultNodes(answer));
      return answer.changed ? 'The server uses what it has read.' : 'The server has read its files. Nothing has changed.';
    } catch (failure) {
      if (!failure.body?.errors) throw failure;
      result.replaceChildren(...resultNodes(failure));
      const isOfRules = failure.body.units.some(({ unit, outcome: how }) => unit === 'rules' && how === 'failed');
      throw Object.assign(new Error(isOfRules ? 'The rules were not reloaded. The earlier rules stay in use.' : 'Not everything was reloaded. What has errors stays as it was.'), { help: 'correct the errors below in the files, and reload again' });
    } finally {
      read().catch(() => {});
    }
  });
  let [shown, tried] = [null, null];
  async function show(key) {
    try {
      const { reloads } = await get('/reloads');
      shown = key;
      error.replaceChildren();
      fillOnce(list, reloads, () => (reloads.length ? [reloads.length > 1 && h('p.faint', 'The newest first. The server keeps the last 32.'), ...reloadNodes(reloads)] : h('p', 'No file has changed since the server started. A changed file, the button above, ', h('code', 'spillgate reload'), ' and SIGHUP make it read its files again.')));
    } catch (failure) {
      showError(error, failure);
    }
  }
  return {
    title: 'Reloads',
    element: h('div.view.narrow', h('h1', 'Reloads'), h('p', 'The server reads its rules, admin tokens, certificates and settings file again. What has an error does not change.'), h('div.row', now, done), result, error, list),
    update() {
      // After a failure, the next overview leads to another try.
      if (!state.overview || tried === state.overview) return;
      tried = state.overview;
      const key = `${tried.server.id} ${tried.changes}`;
      if (shown !== key) show(key);
    },
  };
}
