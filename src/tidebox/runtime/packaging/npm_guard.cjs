// Loaded into npm before its own code, whichever version that is: npm starts no program, and while it resolves it asks
// registries for metadata and nobody for anything else. What a package names as a dependency can be any address.
"use strict";

const children = require("node:child_process");
for (const name of ["exec", "execFile", "execFileSync", "execSync", "fork", "spawn", "spawnSync"]) {
  children[name] = () => {
    throw new Error("not a package of a registry: npm may start no program");
  };
}

// Set while npm resolves: scheme and host of each registry.
const origins = process.env.TIDEBOX_REGISTRIES?.split(" ");
if (origins !== undefined) {
  const allowed = new Set(origins.map((origin) => new URL(origin).origin));
  for (const scheme of ["http", "https"]) {
    const module = require(`node:${scheme}`);
    const request = module.request;
    module.request = (options, ...rest) => {
      const host = options?.hostname ?? options?.host;
      const port = options?.port ? `:${options.port}` : "";
      const origin = URL.canParse(`${scheme}://${host}${port}`) ? new URL(`${scheme}://${host}${port}`).origin : "";
      const headers = Object.entries(options?.headers ?? {});
      const kind = headers.find(([name]) => name.toLowerCase() === "pacote-req-type")?.[1];
      if (!allowed.has(origin) || String(kind) !== "packument") {
        throw new Error("not metadata of a registry: npm may not fetch it");
      }
      return request(options, ...rest);
    };
    module.get = (options, ...rest) => module.request(options, ...rest).end();
  }
}
