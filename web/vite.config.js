// Builds the web UI into the Python package, with the licenses of what is in it and a digest of what it was built from.
import { createHash } from "node:crypto";
import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const here = dirname(fileURLToPath(import.meta.url));
const built = join(here, "../src/tidebox/api/webui/built");

/** The package whose file a module is; undefined for our own. */
function packageOf(module) {
  const at = module.lastIndexOf("/node_modules/");
  if (at < 0) return undefined;
  const words = module.slice(at + "/node_modules/".length).split("/");
  return join(module.slice(0, at), "node_modules", words[0].startsWith("@") ? `${words[0]}/${words[1]}` : words[0]);
}

function licenses(modules) {
  const packages = new Set([...modules].map((module) => packageOf(module.split("?")[0])).filter(Boolean));
  const parts = [...packages].sort().map((directory) => {
    const about = JSON.parse(readFileSync(join(directory, "package.json"), "utf8"));
    const file = readdirSync(directory).find((name) => /^licen[sc]e/i.test(name));
    const text = file ? readFileSync(join(directory, file), "utf8").trim() : "";
    return `${about.name} ${about.version} (${about.license})\n\n${text}\n`;
  });
  return `The web UI of Tidebox holds parts of these packages.\n\n${parts.join(`\n${"-".repeat(80)}\n\n`)}`;
}

/** Every file that the build depends on, by name. A test of the project counts them in the same way. */
function sources() {
  const names = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.js"];
  for (const directory of ["public", "src"]) {
    for (const entry of readdirSync(join(here, directory), { recursive: true, withFileTypes: true })) {
      if (entry.isFile()) names.push(relative(here, join(entry.parentPath, entry.name)));
    }
  }
  return names.sort();
}

function digest() {
  const hash = createHash("sha256");
  for (const name of sources()) {
    const content = createHash("sha256").update(readFileSync(join(here, name))).digest("hex");
    hash.update(`${content}  ${name}\n`);
  }
  return hash.digest("hex");
}

const notes = {
  name: "tidebox-notes",
  writeBundle(_options, bundle) {
    const modules = new Set();
    for (const chunk of Object.values(bundle)) {
      for (const module of chunk.type === "chunk" ? chunk.moduleIds : []) modules.add(module);
    }
    // Style sheets are no modules of a chunk any more once they are files of their own.
    for (const name of ["@xterm/xterm", "uplot"]) {
      if (existsSync(join(here, "node_modules", name))) modules.add(join(here, "node_modules", name, "package.json"));
    }
    writeFileSync(join(built, "LICENSES.txt"), licenses(modules));
    writeFileSync(join(built, "sources.sha256"), `${digest()}\n`);
  },
};

export default defineConfig({
  base: "/webui/",
  html: { cspNonce: "__CSP_NONCE__" },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: built,
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 800,
  },
  plugins: [notes],
});
