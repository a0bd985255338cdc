// Time travel without loading pages: the slider and the links put the step in its place. Everything works without it, by links.
"use strict";

const form = document.querySelector("[data-travel]");
const place = document.querySelector("[data-step]");
if (form && place) {
  const slider = form.elements.namedItem("at");
  const at = form.querySelector("[data-at]");
  const told = form.querySelector("[data-told]");
  form.querySelector("[data-go]").hidden = true;

  const copying = () => {
    for (const button of place.querySelectorAll("[data-copy]")) {
      if (!navigator.clipboard) continue;
      button.hidden = false;
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
        told.textContent = "Copied.";
      });
    }
  };

  let asked = 0;
  const show = async (position, keep) => {
    const mine = ++asked;
    const address = `${form.action}?at=${position}`;
    try {
      const answer = await fetch(address, { headers: { "x-wardwright-fragment": "yes" }, cache: "no-store" });
      if (answer.status === 401) return location.reload();
      if (mine !== asked) return; // somebody moved on
      if (!answer.ok) throw new Error();
      const text = await answer.text();
      if (mine !== asked) return;
      const open = new Set([...place.querySelectorAll("details[open] summary")].map((one) => one.textContent.split(":")[0]));
      const rel = place.contains(document.activeElement) ? document.activeElement.rel : "";
      place.replaceChildren(document.createRange().createContextualFragment(text));
      for (const one of place.querySelectorAll("details")) one.open = open.has(one.querySelector("summary").textContent.split(":")[0]);
      if (rel) place.querySelector(`[rel="${rel}"]`)?.focus();
      const here = place.querySelector("[data-position]").dataset.position;
      at.textContent = here;
      if (!keep) slider.value = here;
      document.title = document.title.replace(/^Step \d+/, `Step ${here}`);
      history.replaceState(null, "", address);
      told.textContent = "";
      copying();
    } catch {
      if (mine === asked) told.textContent = "This step cannot be shown.";
    }
  };

  let soon = 0;
  slider.addEventListener("input", () => {
    at.textContent = slider.value;
    clearTimeout(soon);
    soon = setTimeout(() => show(slider.value, true), 60);
  });
  place.addEventListener("click", (event) => {
    const link = event.target instanceof Element && event.target.closest('nav[aria-label="Steps"] a');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show(new URL(link.href).searchParams.get("at"), false);
  });
  copying();
}
