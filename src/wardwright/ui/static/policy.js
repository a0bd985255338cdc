// What the editor gains when scripts run: line numbers that follow, a jump to the line of a problem, a draft that is not lost.
"use strict";

for (const code of document.querySelectorAll("[data-code]")) {
  const area = code.querySelector("textarea");
  const gutter = code.querySelector(".gutter");
  let lines = area.value.split("\n").length;
  area.addEventListener("input", () => {
    const now = area.value.split("\n").length;
    if (now === lines) return;
    lines = now;
    const marks = new Map([...gutter.querySelectorAll(".mark")].map((one) => [Number(one.textContent), one]));
    gutter.replaceChildren();
    for (let number = 1; number <= lines; number += 1) gutter.append(marks.get(number) || String(number), "\n");
    area.rows = Math.max(lines + 1, 6);
  });
  // Tab would leave the field; it stays a way out for the keyboard, so indenting is done with spaces on Enter.
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const before = area.value.slice(0, area.selectionStart);
    const indent = /^ */.exec(before.slice(before.lastIndexOf("\n") + 1))[0];
    if (!indent) return;
    event.preventDefault();
    area.setRangeText(`\n${indent}`, area.selectionStart, area.selectionEnd, "end");
    area.dispatchEvent(new Event("input", { bubbles: true }));
  });
}

for (const link of document.querySelectorAll("[data-goto]")) {
  link.addEventListener("click", (event) => {
    const area = document.getElementById(link.dataset.goto);
    if (!area) return;
    event.preventDefault();
    const lines = area.value.split("\n");
    const line = Math.min(Number(link.dataset.line), lines.length);
    const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    const column = Math.min(Number(link.dataset.column) - 1, lines[line - 1].length);
    area.focus({ preventScroll: true });
    area.setSelectionRange(start + column, start + lines[line - 1].length);
    const height = parseFloat(getComputedStyle(area).lineHeight);
    window.scrollTo({ top: area.getBoundingClientRect().top + window.scrollY + (line - 1) * height - window.innerHeight / 3 });
  });
}

// What was typed is offered again in this tab, should a page have lost it: a session that ran out, a link that was followed.
const editor = document.getElementById("editor");
if (editor) {
  const area = editor.elements.namedItem("source");
  const key = "wardwright-draft";
  const draft = sessionStorage.getItem(key);
  if (draft === area.value) sessionStorage.removeItem(key);
  else if (draft !== null) {
    const box = document.createElement("p");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.textContent = "Bring back what you typed before";
    button.addEventListener("click", () => {
      area.value = draft;
      area.dispatchEvent(new Event("input", { bubbles: true }));
      box.remove();
      area.focus();
    });
    box.append(button);
    editor.prepend(box);
  }
  area.addEventListener("input", () => sessionStorage.setItem(key, area.value));
}
for (const form of document.querySelectorAll("form[action='/signout']")) {
  form.addEventListener("submit", () => sessionStorage.removeItem("wardwright-draft"));
}
