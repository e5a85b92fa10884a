// Makes and changes elements. Every text goes through text nodes, so a text from a caller never becomes markup.

import { clock, duration, pathEntries } from './format.js';

const isAttributes = (value) => value !== null && typeof value === 'object' && Object.getPrototypeOf(value) === Object.prototype;

function make(namespace, selector, parts) {
  const [tag, ...classes] = selector.split('.');
  const node = document.createElementNS(namespace, tag);
  if (classes.length) node.setAttribute('class', classes.join(' '));
  const attributes = isAttributes(parts[0]) ? parts.shift() : {};
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...parts.flat(2).filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

// Makes an HTML element: its name with its classes, its attributes if it has any, and its children. An attribute that begins
// with "on" is a function for an event.
export const h = (selector, ...parts) => make('http://www.w3.org/1999/xhtml', selector, parts);

export const s = (selector, ...parts) => make('http://www.w3.org/2000/svg', selector, parts);

export function setText(node, text) {
  const first = node.firstChild;
  if (first?.nodeType === Node.TEXT_NODE && !first.nextSibling) {
    if (first.data !== text) first.data = text;
  } else {
    node.textContent = text;
  }
}

export const byId = (id) => document.getElementById(id);

export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Replaces the children if `values`, of which they are made, have changed.
export function fillOnce(node, values, make) {
  const key = JSON.stringify(values) ?? '';
  if (node.filledWith === key) return;
  node.filledWith = key;
  const hadFocus = node.contains(document.activeElement);
  node.replaceChildren(...[make()].flat().filter(Boolean));
  // The focus stays where it was, for people who use the keyboard.
  if (hadFocus) node.querySelector('button, a, select, input')?.focus();
}

// Says a text to people who cannot see the page.
export const say = (text) => setText(byId('said'), text);

export const field = (label, input, hint) => h('label.field', h('span', label), input, hint && h('small', hint));

export const keyOptions = (paths) => [...new Set(paths.flatMap((path) => pathEntries(path).map(([key]) => key)))].slice(0, 100).map((key) => h('option', { value: key }));

export const select = (name, pairs, chosen) => h('select', { name }, pairs.map(([value, text]) => h('option', { value, selected: value === chosen }, text)));

// Runs `run` instead of sending a form.
export function onSubmit(form, run) {
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    run();
  });
}

// Opens a dialog. The rest of the page waits for it.
export function modal(title, ...parts) {
  const dialog = h('dialog', { 'aria-labelledby': 'dialog' }, h('h2', { id: 'dialog' }, title), parts);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// Runs an action of a button, and shows what was done or what went wrong.
export async function act(button, output, action) {
  if (button.getAttribute('aria-disabled') === 'true') return;
  button.setAttribute('aria-disabled', 'true');
  try {
    const done = await action();
    showDone(output, done);
  } catch (error) {
    showError(output, error);
  } finally {
    button.removeAttribute('aria-disabled');
  }
}

export function showDone(output, text) {
  output.className = text ? 'outcome good' : 'outcome';
  output.replaceChildren(text ?? '');
  say(text ?? '');
}

export function showError(output, error) {
  output.className = 'outcome bad';
  output.replaceChildren(h('strong', error.detail ?? error.message), error.help ? ` What to do: ${error.help}.` : '');
  say(output.textContent);
}

// The time of an answer that is not asked for again by itself. `set` says that it came now. `close` ends the counting of its age.
export function answerTime() {
  const element = h('p.faint.answered');
  let [at, ticks] = [0, 0];
  const show = () => setText(element, `Answer of ${clock(at)}, ${duration(Math.floor((performance.now() - ticks) / 1000) * 1e9)} ago. It does not change by itself.`);
  const timer = setInterval(() => element.isConnected && show(), 1000);
  return {
    element,
    set() {
      [at, ticks] = [Date.now(), performance.now()];
      show();
    },
    close: () => clearInterval(timer),
  };
}

export const faint = (...parts) => h('span.faint', ...parts);

// A part of a view with its title, and `beside` next to it.
export function section(selector, id, title, beside, ...parts) {
  const heading = h('h2', { id }, title);
  return h(`section${selector}`, { 'aria-labelledby': id }, beside ? h('div.row', heading, beside) : heading, ...parts);
}

// A table. A row is a list of its cells, and a number is ['number', ...parts]. On a narrow screen, cells show the head of their column.
export function table(selector, caption, heads, rows) {
  const isNumber = (index) => rows[0]?.[index]?.[0] === 'number';
  const column = (text, index) => (text ? h('th', { scope: 'col', class: isNumber(index) && 'number' }, text) : h('td'));
  const cell = (parts, index) => (index === 0 ? h('th', { scope: 'row' }, parts)
    : h('td', { 'data-head': heads[index] !== 'Do' && heads[index], class: parts[0] === 'number' && 'number' }, parts[0] === 'number' ? parts.slice(1) : parts));
  return h(`table${selector}`, caption, h('thead', h('tr', ...heads.map(column))), h('tbody', ...rows.map((row) => h('tr', ...row.map(cell)))));
}

export const outcome = () => h('p.outcome');
