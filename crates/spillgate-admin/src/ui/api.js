// Asks the admin listener. The token is sent in a header, never in an address, and is kept only as long as the tab.

import { h, modal, onSubmit } from './dom.js';

const TOKEN = 'spillgate-token';
const TIMEOUT_MS = 15_000;
// The most text of one event. A server with 1,000 limits sends about 40 kB.
const EVENT_CHARS_MAX = 8 * 1024 * 1024;

// An answer that is no success, with what is wrong (`detail`) and how to fix it (`help`). `body` is the whole answer.
export class Problem extends Error {
  constructor(status, detail, help, body = {}) {
    super(detail);
    Object.assign(this, { status, detail, help, body });
  }
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

export function forgetToken() {
  sessionStorage.removeItem(TOKEN);
  location.reload();
}

function headers(more) {
  const token = sessionStorage.getItem(TOKEN);
  return token === null ? more : { ...more, Authorization: `Bearer ${token}` };
}

async function problem(response) {
  const body = await response.json().catch(() => ({}));
  const { detail, help } = body;
  if (/token may only read/.test(detail)) return new Problem(403, 'Your token may only read.', 'choose "Forget token" below, and enter the token that may write');
  return new Problem(response.status, detail ?? `The server answered with the status ${response.status}.`, help?.replace(/\.$/, ''), body);
}

// Sends a request. If the server wants a token, asks for one and sends the request again.
async function send(path, init, signal = () => AbortSignal.timeout(TIMEOUT_MS)) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    let response;
    try {
      response = await fetch(path, { ...init, headers: headers(init.headers ?? {}), cache: 'no-store', signal: signal() });
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new Problem(0, 'The server does not answer.', 'check that it runs, and that this computer can reach it');
    }
    if (response.status !== 401) {
      if (!response.ok) throw await problem(response);
      return response;
    }
    // Another request may have asked for the token meanwhile.
    if (token === sessionStorage.getItem(TOKEN)) await askForToken(token !== null);
  }
}

export async function get(path) {
  return (await send(path, {})).json();
}

export const post = (path, body, timeout) => postText(path, JSON.stringify(body), timeout);

// Sends a text in JSON as it is. JavaScript would change the order of members that look like numbers.
export async function postText(path, body, timeout = TIMEOUT_MS) {
  const init = { method: 'POST', headers: { 'Content-Type': 'application/json', 'X-Spillgate-Admin': '1' }, body };
  return (await send(path, init, () => AbortSignal.timeout(timeout))).json();
}

let asking = null;

// Asks for the token. Requests that come meanwhile wait for the same dialog.
function askForToken(wasWrong) {
  asking ??= new Promise((done) => {
    const input = h('input', { type: 'password', name: 'token', autocomplete: 'off', required: true, 'aria-describedby': 'token-note' });
    const form = h('form',
      h('p', { id: 'token-note' }, wasWrong ? 'This token is wrong. ' : '',
        'It is in the file of the setting admin_token_file, or of admin_read_token_file if you only want to look. It is kept until you close this tab.'),
      h('label.field', h('span', 'Token'), input),
      h('button.main', 'Use this token'));
    const dialog = modal('This server needs a token', form);
    onSubmit(form, () => {
      sessionStorage.setItem(TOKEN, input.value.trim());
      dialog.remove();
      asking = null;
      done();
    });
    dialog.addEventListener('close', () => dialog.showModal());
  });
  return asking;
}

// Reads the event stream until it ends. `alive` is called for each piece of it.
export async function events(on, alive, signal) {
  const response = await send('/events', { headers: { Accept: 'text/event-stream' } }, () => signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    text += value;
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      readEvent(text.slice(0, end), on);
      text = text.slice(end + 2);
    }
    if (text.length > EVENT_CHARS_MAX) throw new Problem(0, 'The server sent an event that is too long.');
  }
}

function readEvent(block, on) {
  let [name, data] = ['message', ''];
  for (const line of block.split('\n')) {
    const [, field, value] = /^([a-z]*): ?(.*)$/.exec(line) ?? [];
    if (field === 'event') name = value;
    if (field === 'data') data += value;
  }
  if (data) on(name, JSON.parse(data));
}
