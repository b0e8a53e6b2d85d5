// What the pages do beyond htmx: tell the time zone of this machine, say when the dashboard cannot be
// reached, "/" for the search field, one box that chooses all rows, the tab of this page in sight on
// a phone, and one action for several clicks: the answer to the second would replace that to the
// first, with its button "Undo".
"use strict";
const root = document.documentElement;
const home = document.querySelector(".brand").pathname; // where the dashboard is mounted
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
document.cookie = `bide_zone=${zone}; path=${home}; max-age=31536000; samesite=lax`;
document.addEventListener("htmx:error", () => root.classList.add("away"));
document.addEventListener("htmx:after:request", () => root.classList.remove("away"));
document.addEventListener("keydown", event => {
  const typing = event.target.closest("input, textarea, select");
  const search = document.getElementById("search"); // a visitor who has to log in has none
  if (event.key !== "/" || typing || !search || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  search.focus();
});
const tab = document.querySelector("nav [aria-current]");
if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - 14;
const LONGEST = 30_000; // milliseconds that an action may take
let sent = -LONGEST;
document.addEventListener("submit", event => {
  if (event.target.method !== "post") return;
  if (event.timeStamp - sent < LONGEST) event.preventDefault();
  else sent = event.timeStamp;
});
addEventListener("pageshow", event => {
  if (event.persisted) sent = -LONGEST; // the page comes back as it was left
});
document.addEventListener("change", event => {
  if (event.target.id !== "choose-all") return;
  for (const box of event.target.closest("table").querySelectorAll("tbody input[type=checkbox]"))
    box.checked = event.target.checked;
});
