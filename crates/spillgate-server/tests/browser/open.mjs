// Opens pages in headless Chromium, and prints one line of JSON about each page.
//
//   node open.mjs TOOLS CHROMIUM [--pictures FOLDER] PAGE...
//
// TOOLS is the folder in which scripts/setup.sh installed puppeteer-core and axe-core. With --pictures, the folder gets
// screenshots and a PDF file of each page.
//
// Each page is opened in several ways (WAYS). In one of them, the page's own security policy is off, because the policy
// would stop a script that was not escaped, and so hide the mistake.

import { readFileSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

import { launch, violationTexts } from './launch.mjs';

// `axe` has the options of axe-core. A dark page differs from a light page only in colours, so only these are checked again.
const WAYS = [
  { name: 'light', scheme: 'light', width: 1200, height: 900, axe: {} },
  { name: 'dark', scheme: 'dark', width: 1200, height: 900, axe: { runOnly: ['color-contrast', 'link-in-text-block'] } },
  { name: 'phone', scheme: 'light', width: 360, height: 740, axe: {} },
  { name: 'dark-phone', scheme: 'dark', width: 320, height: 640, axe: {} },
  { name: 'without-policy', scheme: 'light', width: 1200, height: 900, withoutPolicy: true },
];

// At none of these widths, a page scrolls sideways.
const WIDTHS = [320, 390, 600, 704, 768, 900, 1024, 1100, 1440];
// Of these there are pictures.
const PICTURED = [320, 390, 768, 1024, 1440];

function readArguments(list) {
  const [tools, chromium, ...rest] = list;
  const at = rest.indexOf('--pictures');
  const pictures = at < 0 ? undefined : rest.splice(at, 2)[1];
  return { tools: resolve(tools), chromium, pictures, pages: rest };
}

// Returns the host of an address, or of the target of a CONNECT.
function hostOf(address) {
  return address.replace(/^\w+:\/\//, '').split(/[/:]/)[0];
}

// Runs in the page. Returns what a page without scripts must not have.
function activeParts() {
  const found = [];
  for (const element of document.querySelectorAll('*')) {
    const name = element.localName;
    const forbidden = ['script', 'iframe', 'object', 'embed', 'img', 'image', 'link', 'base', 'form', 'video', 'audio'];
    if (forbidden.includes(name)) found.push(`<${name}>`);
    for (const { name: attribute, value } of element.attributes) {
      if (attribute.startsWith('on')) found.push(`<${name} ${attribute}>`);
      if (['href', 'src', 'xlink:href'].includes(attribute) && !value.startsWith('#')) found.push(`<${name} ${attribute}="${value}">`);
      if (attribute === 'http-equiv' && value.toLowerCase() === 'refresh') found.push('<meta refresh>');
    }
  }
  return found;
}

async function open(browser, file, way, axe, found) {
  const page = await browser.newPage();
  const address = pathToFileURL(resolve(file)).href;
  page.on('request', (request) => request.url() === address || found.requests.push(request.url()));
  page.on('dialog', (dialog) => { found.scripts.push(`${way.name}: dialog`); dialog.dismiss(); });
  page.on('pageerror', (error) => found.scripts.push(`${way.name}: ${error.message}`));
  await page.setBypassCSP(Boolean(way.withoutPolicy));
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: way.scheme }]);
  await page.setViewport({ width: way.width, height: way.height, deviceScaleFactor: 1 });
  await page.goto(address, { waitUntil: 'load' });
  const { title, hacked, wide } = await page.evaluate(() => ({
    title: document.title,
    hacked: window.hacked,
    wide: document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth,
  }));
  found.titles.push(title);
  if (way.name === 'phone') found.phone_height = await page.evaluate(() => document.scrollingElement.scrollHeight);
  if (hacked !== undefined) found.scripts.push(`${way.name}: window.hacked is ${hacked}`);
  if (wide) found.too_wide.push(way.name);
  found.active.push(...await page.evaluate(activeParts));
  if (way.axe) {
    await page.evaluate(axe);
    const results = await page.evaluate((options) => window.axe.run({ ...options, resultTypes: ['violations'] }), way.axe);
    found.violations.push(...violationTexts(way.name, results));
  }
  return page;
}

async function checkWidths(page, way, folder, file, found) {
  for (const width of WIDTHS) {
    await page.setViewport({ width, height: way.height, deviceScaleFactor: 1 });
    if (await page.evaluate(() => document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth)) found.too_wide.push(`${way.name} at ${width}`);
    if (folder && PICTURED.includes(width)) await page.screenshot({ path: join(folder, `${basename(file, '.html')}-${width}-${way.name}.png`), fullPage: true });
  }
}

async function takePictures(page, way, folder, file) {
  const name = join(folder, `${basename(file, '.html')}-${way.name}`);
  await page.screenshot({ path: `${name}.png`, fullPage: true });
  if (way.name === 'dark') {
    await page.pdf({ path: `${name.replace(/-dark$/, '')}-print.pdf`, format: 'A4', printBackground: false });
  }
}

const { tools, chromium, pictures, pages } = readArguments(process.argv.slice(2));
const { browser, axe, asked, close } = await launch(tools, chromium, false);
try {
  for (const file of pages) {
    const found = { page: basename(file), titles: [], scripts: [], active: [], requests: [], violations: [], phone_height: 0, too_wide: [] };
    asked.length = 0;
    for (const way of WAYS) {
      const page = await open(browser, file, way, axe, found);
      if (pictures && !way.withoutPolicy) await takePictures(page, way, pictures, file);
      // A dark page has the same shape.
      if (way.name === 'light' || (pictures && way.name === 'dark')) await checkWidths(page, way, pictures, file, found);
      await page.close();
    }
    // A browser also requests a few addresses for itself. A page without scripts can request only hosts that its text names.
    const text = readFileSync(file, 'utf8');
    found.requests.push(...asked.filter((address) => text.includes(hostOf(address))));
    console.log(JSON.stringify(found));
  }
} finally {
  await close();
}
