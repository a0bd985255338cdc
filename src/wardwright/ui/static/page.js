// What pages gain when scripts run: a sign-in by link, live refresh, keys. Everything works without it, but for the sign-in by link.
"use strict";

// A link such as /signin#TOKEN: the part after # never leaves the browser by itself.
const signin = document.getElementById("signin");
if (signin && location.hash.length > 1) {
  let token = location.hash.slice(1);
  try {
    token = decodeURIComponent(token);
  } catch {
    // A token with a % of its own.
  }
  history.replaceState(null, "", location.pathname + location.search);
  signin.elements.namedItem("token").value = token;
  signin.requestSubmit();
}

// "/" goes to the search, as in many places.
document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector("[data-search]");
  if (search) {
    event.preventDefault();
    search.focus();
  }
});

// Left and right go through steps and pages.
document.addEventListener("keydown", (event) => {
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  const typing = event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable], [tabindex='0']");
  if (!rel || typing || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  document.querySelector(`a[rel="${rel}"]`)?.click();
});

// A form is sent once, however often its button is pressed.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.sent) event.preventDefault();
  else if (form.method === "post") {
    form.dataset.sent = "yes";
    setTimeout(() => delete form.dataset.sent, 5000);
  }
});

// What has the focus is found again in what takes its place: by where it leads, or by what it does.
const finder = (at) => {
  const told = (one) => [one.tagName, one.id, one.getAttribute("href"), one.value, one.form?.getAttribute("action"), one.textContent].join("\n");
  const wanted = told(at);
  return (one) => told(one) === wanted;
};

// <div data-live="/address"> is asked for anew every two seconds, unless paused, hidden, or somebody is at work inside it.
for (const place of document.querySelectorAll("[data-live]")) {
  const button = document.querySelector("[data-pause]");
  const told = document.querySelector("[data-told]");
  let paused = false;
  let tag = place.dataset.tag || "";
  const busy = () => {
    const at = document.activeElement;
    if (at && place.contains(at) && at.matches("input, textarea, select")) return true;
    return [...place.querySelectorAll("input:not([type=hidden]), textarea")].some((one) => one.value !== one.defaultValue);
  };
  const refresh = async () => {
    if (paused || document.hidden || busy()) return;
    try {
      const answer = await fetch(place.dataset.live, {
        headers: { "x-wardwright-fragment": "yes", ...(tag ? { "if-none-match": tag } : {}) },
        cache: "no-store",
      });
      if (answer.status === 401) {
        location.reload();
        return;
      }
      if (answer.status === 200) {
        const text = await answer.text();
        if (busy()) return;
        const open = new Set([...place.querySelectorAll("details[open][id]")].map((one) => one.id));
        const same = place.contains(document.activeElement) ? finder(document.activeElement) : null;
        place.replaceChildren(document.createRange().createContextualFragment(text));
        for (const one of place.querySelectorAll("details[id]")) one.open = open.has(one.id) || one.open;
        if (same) [...place.querySelectorAll("a, button, pre, [tabindex]")].find(same)?.focus({ preventScroll: true });
        tag = answer.headers.get("etag") || "";
      }
      if (told) told.textContent = answer.ok || answer.status === 304 ? "" : "The gateway does not answer as it should.";
    } catch {
      if (told) told.textContent = "The gateway does not answer.";
    }
  };
  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      button.setAttribute("aria-pressed", String(paused));
      if (told) told.textContent = paused ? "Paused." : "";
      refresh();
    });
  }
  const again = async () => {
    await refresh();
    setTimeout(again, 2000);
  };
  setTimeout(again, 2000);
}
