"use strict";
(() => {
  const {config, charts} = JSON.parse(document.getElementById("specs").textContent);
  const state = {stat: "p50", hidden: []}, views = [];
  const apply = view => { view.signal("stat", state.stat).signal("hidden", state.hidden.slice()).runAsync(); };
  const draw = async box => {
    // a screen reader gets the chart in words, not each of its marks with twelve digits
    const options = {mode: "vega-lite", ast: true, actions: false, renderer: "svg", logLevel: 1, config: {...config, aria: false}};
    const {view} = await vegaEmbed(box, charts[box.dataset.spec], options);
    views.push(view);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", charts[box.dataset.spec].description);
    box.closest(".panel").classList.add("drawn");
    apply(view);
  };
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  }, {rootMargin: "600px"});
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
