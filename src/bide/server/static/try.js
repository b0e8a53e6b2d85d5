// Sends requests from the page that describes the API, and shows each as a call of curl.
"use strict";
const KEY = "bide-token";
const MOST = 256 * 1024; // characters of an answer
const base = new URL(".", location.href);
const token = document.getElementById("token");

function requestOf(form) {
  const { method, path } = form.dataset;
  const filled = { path: {}, query: [], header: {}, body: "", type: "application/json" };
  for (const { name, value, dataset } of form.elements) {
    if (dataset.in === "path") filled.path[name] = encodeURIComponent(value);
    else if (!value) continue;
    else if (dataset.in === "query") filled.query.push([name, value]);
    else if (dataset.in === "header") filled.header[name] = value;
    else if (dataset.in) filled[dataset.in] = value;
  }
  const url = new URL(path.slice(1).replace(/{(\w+)}/g, (_, name) => filled.path[name]), base);
  for (const pair of filled.query) url.searchParams.append(...pair);
  const body = filled.body || undefined;
  const headers = body ? { ...filled.header, "content-type": filled.type } : filled.header;
  return { method, url, headers, body, secret: secretOf(form) };
}

function secretOf(form) {
  return "token" in form.dataset ? token.value.trim() : "";
}

function curlOf({ method, url, headers, body, secret }) {
  const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;
  const parts = [`curl -i -X ${method} ${quoted(url.href)}`];
  for (const [name, value] of Object.entries(headers)) parts.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (secret) parts.push('-H "authorization: Bearer $BIDE_TOKEN"'); // never the token itself
  if (body) parts.push(`--data-raw ${quoted(body)}`);
  return parts.join(" \\\n  ");
}

function showCurl(form) {
  form.querySelector(".curl").textContent = curlOf(requestOf(form));
}

async function send(form) {
  const part = name => form.querySelector(`.${name}`);
  const { method, url, headers, body, secret } = requestOf(form);
  if (secret) headers.authorization = `Bearer ${secret}`;
  const stopping = new AbortController();
  const began = performance.now();
  const say = text => (part("status").textContent = text);
  part("stop").onclick = () => stopping.abort();
  part("stop").disabled = false;
  form.querySelector("[type=submit]").disabled = true;
  part("came").hidden = true;
  say("Sent.");
  try {
    const reply = await fetch(url, {
      method, headers, body, signal: stopping.signal, cache: "no-store", redirect: "error",
      referrerPolicy: "no-referrer",
    });
    const line = `${reply.status} ${reply.statusText}, ${Math.round(performance.now() - began)} ms`;
    say(line);
    part("headers").textContent = [...reply.headers].map(([name, text]) => `${name}: ${text}`).join("\n");
    part("body").textContent = "";
    part("came").hidden = false;
    const whole = await read(reply, text => (part("body").textContent = text));
    if (!whole) say(`${line}. Only the beginning of the body is shown.`);
  } catch (error) {
    say(error.name === "AbortError" ? `${part("status").textContent} Stopped.` : `Failed: ${error.message}`);
  } finally {
    stopping.abort();
    part("stop").disabled = true;
    form.querySelector("[type=submit]").disabled = false;
  }
}

// Shows the body as it comes, for some answers have no end; tells whether all of it was shown.
async function read(reply, show) {
  if (!reply.body) return true;
  const reader = reply.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    text += done ? decoder.decode() : decoder.decode(value, { stream: true });
    if (done || text.length > MOST) {
      show(done ? indented(text) : text.slice(0, MOST));
      return done;
    }
    show(text);
  }
}

// Indents JSON, unless JavaScript would change it, as numbers of more than 53 bits.
function indented(text) {
  try {
    const value = JSON.parse(text);
    return JSON.stringify(value) === text ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}

const forms = [...document.querySelectorAll("form[data-path]")];
for (const form of forms) {
  form.append(document.getElementById("answer").content.cloneNode(true));
  form.addEventListener("input", () => showCurl(form));
  form.addEventListener("submit", event => {
    event.preventDefault();
    send(form);
  });
  form.hidden = false;
}
function keep() {
  if (token.value) sessionStorage.setItem(KEY, token.value);
  else sessionStorage.removeItem(KEY);
  forms.forEach(showCurl);
}
token.value = sessionStorage.getItem(KEY) ?? "";
token.addEventListener("input", keep);
document.getElementById("forget").addEventListener("click", () => {
  token.value = "";
  keep();
});
document.getElementById("access").hidden = false;
forms.forEach(showCurl);
