// What operators have changed for a time: blocked callers, and rules in shadow.

import { DURATIONS, block, button, ends, scopeText, shadow, shadowForm, unblock, whereText } from './actions.js';
import { act, faint, field, fillOnce, h, keyOptions, modal, onSubmit, outcome, section, select, setText, table } from './dom.js';
import { count, durationMs, entryText, nameOf, plural, time } from './format.js';
import { limitLink } from './rows.js';
import { shadowOf, state } from './state.js';

// The field to search blocks finds the others.
const BLOCKS_SHOWN = 200;

function blockForm(output) {
  const [domain, time] = [h('select', { name: 'domain' }), select('for', DURATIONS, '10m')];
  const [submit, keys] = [h('button.main', 'Block'), h('datalist', { id: 'keys' })];
  const form = h('form.card.fields', { autocomplete: 'off' },
    field('Key', h('input', { name: 'key', required: true, list: 'keys' }), 'for example remote_address'),
    field('Value', h('input', { name: 'value' }), 'for example 203.0.113.9'),
    field('Where', domain), field('For', time), field('Reason (others see it)', h('input', { name: 'reason', maxlength: '200' })), submit, keys);
  onSubmit(form, () => {
    const { domain: where, reason, ...request } = Object.fromEntries(new FormData(form));
    // The name of a domain has a letter before it, so that none is the empty text, which means all.
    // What was copied often has a space beside it.
    for (const name of ['key', 'value']) request[name] = request[name].trim();
    if (where) request.domain = where.slice(1);
    if (reason) request.reason = reason;
    act(submit, output, async () => {
      const done = await block(request);
      form.reset();
      return done;
    });
  });
  return {
    form,
    update() {
      const names = [...new Set(state.limits.map((limit) => limit.domain))];
      const paths = state.limits.map((limit) => limit.rule);
      fillOnce(domain, names, () => [h('option', { value: '' }, 'all domains'), ...names.map((name) => h('option', { value: `d${name}` }, `domain ${name}`))]);
      fillOnce(keys, paths, () => keyOptions(paths));
    },
  };
}

function confirmAll(time) {
  return new Promise((done) => {
    const close = (answer) => {
      // Closing gives the focus back.
      dialog.close();
      dialog.remove();
      done(answer);
    };
    const dialog = modal(`Refuse nothing for ${time}?`, h('p', 'Every rule goes on counting, but no limit refuses. Blocks still do.'),
      h('div.row', h('button.main', { onclick: () => close(true) }, 'Put all rules into shadow'), h('button', { onclick: () => close(false) }, 'Cancel')));
    dialog.addEventListener('cancel', () => close(false));
  });
}

// A button that ends an entry of a list. Then its row goes at once. No other button may take its place under the pointer, so the empty
// row keeps its height until the pointer has left it.
function endButton(text, of, output, end) {
  const node = button([text, h('span.unseen', of)], output, async () => {
    const isUnderPointer = node.matches(':hover');
    const done = await end();
    const row = node.closest('tr');
    if (row) {
      const [hadFocus, height] = [row.contains(document.activeElement), row.offsetHeight];
      const cell = h('td', { colspan: row.children.length });
      cell.style.height = `${height}px`;
      row.replaceChildren(cell);
      row.className = 'gone';
      // The browser finds out only with the next frame that the pointer is on the new cell, and an update can come before. What was
      // done is said above the list, which can move the row away: only a pointer that moves leaves it.
      if (isUnderPointer) {
        row.classList.add('held');
        const leave = ({ target }) => {
          if (row.contains(target)) return;
          row.classList.remove('held');
          removeEventListener('pointermove', leave);
        };
        addEventListener('pointermove', leave);
      }
      // For people who use the keyboard, the focus goes to the title of the list.
      if (hadFocus) focusTitle(row);
    }
    return done;
  });
  return node;
}

function focusTitle(row) {
  const title = row.closest('section').querySelector('h2');
  title.tabIndex = -1;
  title.focus({ preventScroll: true });
}

const isInUse = (list) => list.matches(':has(button:hover, button:focus-visible, .held)');

function blockRow(entry, output) {
  const name = entryText(entry.key, entry.value);
  return [[h('code', name), entry.reason && faint(entry.reason)], entry.domain ?? 'all domains', ends(entry.until_ms), time(entry.since_ms), ['number', count(entry.refused)],
    endButton('Unblock', ` ${name} ${whereText(entry.domain)}`, output, () => unblock(entry))];
}

function shadowRow(entry, output) {
  const rule = entry === state.shadows.all ? 'all' : { domain: entry.domain, path: entry.path };
  const limit = state.limits.find((one) => one.domain === entry.domain && one.rule === entry.path);
  const name = rule === 'all' ? 'All rules' : `${entry.domain}: ${entry.path}`;
  return [limit ? [h('a', { href: limitLink(limit) }, name), faint(limit.label)] : name, entry.scope === 'fleet' ? 'all servers' : 'this server', ends(entry.until_ms),
    endButton('End', ` the shadow of ${name}`, output, () => shadow({ rule, on: false, scope: entry.scope }))];
}

export function open() {
  const [output, shadowOutput] = [outcome(), outcome()];
  const form = blockForm(output);
  const [list, switches, byFile, all] = [h('div'), h('div'), h('div'), h('div')];
  const note = h('p.faint');
  const search = h('input', { type: 'search', autocomplete: 'off', oninput: () => showBlocks() });
  const searchBox = h('label.search', 'Find a block ', search);

  function showBlocks() {
    const { blocks } = state.blocks;
    const found = blocks.filter((entry) => `${entryText(entry.key, entry.value)} ${entry.reason ?? ''} ${entry.domain ?? ''}`.includes(search.value));
    const shown = found.slice(0, BLOCKS_SHOWN);
    searchBox.hidden = blocks.length <= 10;
    if (!isInUse(list) || shown.length === 0) fillOnce(list, [shown.map((one) => [one.key, one.value, one.domain, one.until_ms, one.reason, one.refused]), found.length], () => (shown.length
      ? [table('', h('caption.unseen', 'Blocked entries'), ['Entry', 'Where', 'Time left', 'Since', 'Refused', 'Do'], shown.map((entry) => blockRow(entry, output))),
        found.length > shown.length && h('p.faint', `${count(found.length - shown.length)} more. Use the field above to find them.`)]
      : h('p.faint', blocks.length ? 'No block has this text.' : 'No caller is blocked.')));
  }

  return {
    title: 'Block and shadow',
    element: h('div.view',
      h('h1', 'Block and shadow'),
      section('', 'block', 'Block a caller', null,
        h('p', 'Until the time has passed, every request with this entry is refused.'), form.form, output),
      section('', 'blocked', 'Blocked now', searchBox, list, note),
      section('', 'shadows', 'Rules in shadow', null,
        h('p', 'A rule in shadow goes on counting, but refuses nothing. To put one rule into shadow, open its limit from the overview.'), switches, byFile, shadowOutput, all)),
    update() {
      if (!state.blocks || !state.overview) return;
      form.update();
      showBlocks();
      const { scope, max, read_ms_ago: age, blocks } = state.blocks;
      setText(note, `${plural(blocks.length, 'block')} of at most ${count(max)}, ${scopeText(scope)}. Refused: the requests that this server has refused because of the block.${age > 5000 ? ` The shared store was last read ${durationMs(age)} ago.` : ''}`);
      const { shadows } = state;
      const entries = [...(shadows.all ? [shadows.all] : []), ...shadows.rules];
      if (!isInUse(switches) || entries.length === 0) fillOnce(switches, [entries.map((one) => [one.domain, one.path, one.scope, one.until_ms]), Boolean(shadows.all)], () => (entries.length
        ? table('', h('caption.unseen', 'Rules in shadow'), ['Rule', 'Where', 'Time left', 'Do'], entries.map((entry) => shadowRow(entry, shadowOutput)))
        : h('p.faint', 'No rule was put into shadow.')));
      const inFile = state.limits.filter((limit) => shadowOf(limit)?.by === 'file');
      fillOnce(byFile, inFile.map((limit) => [limitLink(limit), nameOf(limit)]), () => inFile.length > 0 && h('p', 'In shadow by the rules file, until the file is changed: ', inFile.flatMap((limit, index) => [index ? ', ' : '', h('a', { href: limitLink(limit) }, nameOf(limit))]), '.'));
      fillOnce(all, `${Boolean(shadows.all)} ${shadows.scope_default}`, () => {
        if (shadows.all) return [];
        const { form: allForm, output: done } = shadowForm('all', confirmAll);
        return [h('h3', 'All rules at once'), allForm, done];
      });
    },
  };
}
