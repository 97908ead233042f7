"use strict";
(() => {
  const found = document.getElementById("specs");
  const {config, charts, strings} = found ? JSON.parse(found.textContent) : {};
  // data travels as columns, and each text once
  const unpacked = value => {
    if (Array.isArray(value)) return value.map(unpacked);
    if (value === null || typeof value !== "object") return value;
    if (!value.packed) return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, unpacked(one)]));
    const {packed: {keys, columns, rows}, ...rest} = value;
    const values = Array.from({length: rows}, (_, row) => {
      const one = {};
      keys.forEach((key, index) => {
        const column = columns[index], cell = (column.texts || column)[row];
        if (cell !== null) one[key] = column.texts ? strings[cell] : cell;
      });
      return one;
    });
    return {...rest, values};
  };
  const state = {stat: "p50", hidden: []}, views = [];
  const apply = view => { view.signal("stat", state.stat).signal("hidden", state.hidden.slice()).runAsync(); };
  const draw = async box => {
    // a screen reader gets the chart in words, not each of its marks with twelve digits
    const options = {mode: "vega-lite", ast: true, actions: false, renderer: "svg", logLevel: 1, config: {...config, aria: false}};
    const {view} = await vegaEmbed(box, unpacked(charts[box.dataset.spec]), options);
    views.push(view);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", charts[box.dataset.spec].description);
    box.closest(".panel").classList.add("drawn");
    apply(view);
  };
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  }, {rootMargin: "600px"});
  // a table that goes on to the right says so, and scrolls by keys
  const sized = new ResizeObserver(entries => {
    for (const {target} of entries) {
      const cut = target.scrollWidth > target.clientWidth + 1;
      target.classList.toggle("cut", cut);
      if (!cut) { target.removeAttribute("tabindex"); continue; }
      target.tabIndex = 0;
      target.setAttribute("role", "group");
      target.setAttribute("aria-label", target.querySelector("caption, img")?.textContent || "picture");
    }
  });
  document.querySelectorAll(".wide").forEach(box => sized.observe(box));
  document.documentElement.classList.add("live");
  document.querySelectorAll("[data-spec]").forEach(box => seen.observe(box));
  document.addEventListener("change", event => {
    const input = event.target;
    if (input.name === "stat") state.stat = input.value;
    else if (input.dataset.run !== undefined) {
      state.hidden = state.hidden.filter(name => name !== input.dataset.run);
      if (!input.checked) state.hidden.push(input.dataset.run);
      document.querySelectorAll("[data-run]").forEach(one => { one.checked = !state.hidden.includes(one.dataset.run); });
    } else return;
    document.querySelectorAll(".stat").forEach(one => { one.textContent = state.stat; });
    views.forEach(apply);
  });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(one => { one.open = true; }));
})();
