// Python in a thread of the browser: the runtime, NumPy and SciPy from this site's own files, and dprmt itself.
const PLACE = "../pyodide/";

async function start() {
  let loadPyodide;
  try {
    ({ loadPyodide } = await import(PLACE + "pyodide.mjs"));
  } catch {
    throw new Error("this copy of the site was built without the Python runtime; the command below gives the answer");
  }
  const python = await loadPyodide({ indexURL: new URL(PLACE, import.meta.url).href, packageBaseUrl: new URL(PLACE, import.meta.url).href });
  postMessage({ status: "loading NumPy and SciPy" });
  await python.loadPackage(["numpy", "scipy"], { messageCallback: () => {} });
  if (!python.loadedPackages.numpy || !python.loadedPackages.scipy) {
    throw new Error("this copy of the site was built without NumPy and SciPy; the command below gives the answer");
  }
  const archive = await (await fetch(new URL("dprmt.zip", import.meta.url))).arrayBuffer();
  python.unpackArchive(archive, "zip");
  await python.runPythonAsync("from answer import answer_json");
  return python.globals.get("answer_json");
}

const ready = start();
ready.then(
  () => postMessage({ status: "ready" }),
  (error) => postMessage({ failure: String(error.message || error) }),
);
onmessage = async ({ data }) => {
  let ask;
  try {
    ask = await ready;
  } catch {
    return; // said above
  }
  let answer;
  try {
    answer = JSON.parse(ask(JSON.stringify(data.question)));
  } catch (error) {
    const last = String(error.message || error).trim().split("\n").pop();
    answer = { error: `no answer here (${last}); the command below gives it` };
  }
  postMessage({ id: data.id, answer });
};
