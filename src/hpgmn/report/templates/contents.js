// Marks the section in view in the contents.
"use strict";
(() => {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) =>
    [document.getElementById(link.hash.slice(1)), link]));
  let current = null;
  function mark() {
    let last = null;
    for (const [section, link] of links) {
      if (section.getBoundingClientRect().top < innerHeight / 3) last = link;
    }
    if (last === current) return;
    current?.removeAttribute("aria-current");
    last?.setAttribute("aria-current", "true");
    current = last;
    const list = document.querySelector("nav ul");
    if (last) list.scrollTo({ left: last.offsetLeft - 40, top: last.offsetTop - 200 });
  }
  addEventListener("scroll", mark, { passive: true });
  mark();
})();
