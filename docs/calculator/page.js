// The page of the calculator: sliders, one question under way at a time, the answer in the page's own colours.
(() => {
  const form = document.getElementById("epsilon-of-a-run");
  if (!form) return;
  const says = (name) => form.querySelector(`[data-says="${name}"]`);
  const LOGARITHMIC = { noise_multiplier: 3, sample_rate: 4, steps: 0, steps_per_epoch: 0, epochs: 0, batch_size: 0, samples: 0, at_most: 0, bands: 0, delta: 2, probes: 0, sketch: 0, group: 0 };
  const CHOSEN = ["norms", "sampling", "secret", "neighbours", "beside", "also"];
  const BATCHES = {
    poisson: ["sample_rate", "steps"],
    "at-most": ["samples", "at_most", "sample_rate", "steps"],
    "cyclic-poisson": ["sampling", "bands", "sample_rate", "steps"],
    "fixed-size": ["sampling", "samples", "batch_size", "steps"],
    allocation: ["sampling", "steps_per_epoch", "epochs"],
  };
  let worker = null, busy = false, waiting = null, id = 0, bounds = null;

  const up = (x) => (x === null ? "∞" : (Math.ceil(x * 1e4 * (1 + Number.EPSILON)) / 1e4).toFixed(4));
  const down = (x) => (x === null ? "∞" : (Math.floor(x * 1e4 * (1 - Number.EPSILON)) / 1e4).toFixed(4));
  const spelled = (name, value) =>
    name in LOGARITHMIC && LOGARITHMIC[name] === 0 ? String(Math.round(value)) : Number(value).toPrecision(LOGARITHMIC[name] || 3).replace(/\.?0+$|\.?0+(?=e)/, "");

  function question() {
    const asked = { norms: form.norms.value, sampling: form.sampling.value, secret: form.secret.checked, neighbours: form.neighbours.value };
    for (const name of ["beside", "also"]) asked[name] = form[name].value.trim();
    for (const name of Object.keys(LOGARITHMIC)) asked[name] = form[name].value;
    return asked;
  }

  function command(asked) {
    const words = ["dprmt epsilon"];
    for (const name of ["noise_multiplier", ...BATCHES[asked.sampling], "delta"]) words.push(`--${name.replaceAll("_", "-")} ${asked[name]}`);
    if (asked.norms !== "exact") words.push(`--probes ${asked.probes}`);
    if (asked.norms === "hutch++") words.push(`--sketch ${asked.sketch}`);
    if (asked.norms !== "exact") words.push(asked.secret ? "--secret-probes" : "--public-probes");
    words.push(`--neighbours ${asked.neighbours}`);
    if (asked.group !== "1") words.push(`--group ${asked.group}`);
    for (const name of ["beside", "also"]) if (asked[name]) words.push(`--${name} ${asked[name]}`);
    return words.join(" ");
  }

  function ask() {
    const asked = question();
    says("command").textContent = command(asked);
    Object.assign(form.dataset, { norms: asked.norms, sampling: asked.sampling });
    const query = new URLSearchParams(Object.entries(asked).map(([name, value]) => [name, String(value)]));
    history.replaceState(null, "", `?${query}`);
    if (!worker || form.dataset.state === "failed") return;
    if (busy || form.dataset.state === "loading") { waiting = asked; return; }
    busy = true;
    form.dataset.state = "computing";
    worker.postMessage({ id: ++id, question: asked });
  }

  function show(answer) {
    says("error").textContent = answer.error || "";
    form.dataset.state = answer.error ? "refused" : "answered";
    bounds = null;
    judge();
    if (answer.error) return;
    const { epsilon, direction, statement } = answer.record;
    says("epsilon").textContent = `ε ≤ ${up(epsilon.upper)}`;
    says("interval").textContent = `and ε ≥ ${down(epsilon.lower)}; the direction that decides: ${direction}`;
    says("statement").textContent = statement;
    bounds = epsilon;
    judge();
    says("curve").innerHTML = drawn(answer.curve);
  }

  // A stated ε holds from the upper end on, is refuted below the lower one, and between them nothing is proved.
  function judge() {
    const stated = form.stated.value.trim(), value = Number(stated);
    if (!bounds || stated === "" || !(value >= 0)) { says("verdict").textContent = ""; return; }
    const { lower, upper } = bounds;
    if (upper !== null && value >= upper) says("verdict").textContent = `ε = ${stated} holds: it is at least the certified upper end.`;
    else if (lower === null || value < lower) says("verdict").textContent = `ε = ${stated} is refuted: this run has no ε below ${lower === null ? "∞" : down(lower)}.`;
    else says("verdict").textContent = `ε = ${stated} is not decided: it lies between the certified ends.`;
  }

  function drawn({ unit, steps, upper }) {
    const points = steps.map((count, place) => [count, upper[place]]).filter(([, value]) => value !== null);
    if (!points.length) return "";
    const [width, height, margin] = [480, 220, 40];
    const most = Math.max(...points.map(([, value]) => value)), last = steps[steps.length - 1];
    const x = (count) => margin + (count / last) * (width - margin - 8);
    const y = (value) => height - 24 - (value / most) * (height - 44);
    const line = points.map(([count, value]) => `${x(count).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    const text = (a, b, anchor, words) => `<text x="${a}" y="${b}" text-anchor="${anchor}">${words}</text>`;
    return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="ε against ${unit}">
      <path d="M${margin} 8V${height - 24}H${width - 4}" fill="none" stroke="currentColor" stroke-opacity=".5"/>
      <polyline points="${line}" fill="none" stroke="var(--md-accent-fg-color, #0072b2)" stroke-width="2"/>
      ${text(margin, height - 8, "start", "0")}${text(width - 8, height - 8, "end", `${last} ${unit}`)}
      ${text(margin - 4, height - 24, "end", "0")}${text(margin - 4, y(most) + 4, "end", most.toPrecision(3))}</svg>`;
  }

  function heard({ data }) {
    if (data.status) says("status").textContent = data.status === "ready" ? "" : data.status;
    if (data.status === "ready") { form.dataset.state = "ready"; ask(); }
    if (data.failure) {
      form.dataset.state = "failed";
      says("status").textContent = `No answer here: ${data.failure}.`;
    }
    if (data.answer) {
      busy = false;
      show(data.answer);
      if (waiting) { waiting = null; ask(); }
    }
  }

  function coupled(name) {
    const number = form[name], slider = form[`${name}_slider`];
    const logarithm = (value) => Math.log10(value);
    slider.min = logarithm(number.min); slider.max = logarithm(number.max); slider.step = "any";
    slider.value = logarithm(number.value);
    slider.addEventListener("input", () => { number.value = spelled(name, 10 ** slider.value); ask(); });
    number.addEventListener("change", () => { slider.value = logarithm(number.value); ask(); });
  }

  for (const [name, value] of new URLSearchParams(location.search)) {
    if (!form[name]) continue;
    if (form[name].type === "checkbox") form[name].checked = value === "true";
    else form[name].value = value;
  }
  Object.keys(LOGARITHMIC).forEach(coupled);
  for (const name of CHOSEN) form[name].addEventListener("change", ask);
  Object.assign(form.dataset, { norms: form.norms.value, sampling: form.sampling.value });
  says("command").textContent = command(question());
  form.stated.addEventListener("input", judge);
  form.addEventListener("submit", (event) => event.preventDefault());
  worker = new Worker(new URL("worker.js", document.currentScript.src), { type: "module" });
  worker.onmessage = heard;
  worker.onerror = () => heard({ data: { failure: "this browser could not start a worker" } });
})();
