// A run spec as text for other clients. The key is never in it: each of them finds its own.
import { SERVICE } from "./api";
import { codeOf, mainFileOf } from "./languages";
import type { RunSpec } from "./model";

const quoted = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

export const asRunSpec = (spec: RunSpec) => JSON.stringify(spec, null, 2);

export function asCurl(spec: RunSpec): string {
  return [
    `curl -s ${quoted(location.origin + SERVICE + "/runs")}`,
    `  -H "X-API-KEY: $TIDEBOX_API_KEY" -H 'Content-Type: application/json'`,
    `  -d ${quoted(JSON.stringify(spec))}`,
  ].join(" \\\n");
}

function python(value: unknown): string {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null || value === undefined) return "None";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${python(name)}: ${python(each)}`).join(", ")}}`;
  }
  // What JSON escapes in a text Python reads in the same way, but for halves of characters, which no text here has.
  return JSON.stringify(value);
}

export function asPython(spec: RunSpec): string {
  const files = spec.files?.map((file) => `${python(file.path)}: base64.b64decode(${python(file.content_b64)})`);
  const resources = spec.resources ?? {};
  const values: [string, string | undefined][] = [
    ["language", spec.language && python(spec.language)],
    ["base_image", spec.base_image && python(spec.base_image)],
    ["session_id", spec.session_id && python(spec.session_id)],
    ["runtime", spec.runtime && python(spec.runtime)],
    ["packages", spec.packages && python(spec.packages)],
    ["env", spec.env && python(spec.env)],
    ["labels", spec.labels && python(spec.labels)],
    ["files", files && `{${files.join(", ")}}`],
    ["timeout", spec.timeout_sec?.toString()],
    ["cpus", resources.cpu?.toString()],
    ["memory", resources.memory_mb === undefined ? undefined : `${resources.memory_mb} * 2**20`],
    ["pids", resources.pids?.toString()],
    ["network_policy", spec.network_policy && python(spec.network_policy)],
    ["egress", spec.egress && python(spec.egress)],
    ["trust_level", spec.trust_level && python(spec.trust_level)],
    ["artifacts", spec.capture_patterns && python(spec.capture_patterns)],
  ];
  const options = values.filter(([, value]) => value).map(([name, value]) => `        ${name}=${value},`);
  return [
    ...(files ? ["import base64", ""] : []),
    "from tidebox.sdk import Interpreter",
    "",
    `with Interpreter(${python(location.origin)}) as client:`,
    "    result = client.run(",
    `        ${python(spec.command)},`,
    ...options,
    "    )",
    "    print(result.text)",
    "",
  ].join("\n");
}

export function asCli(spec: RunSpec): string {
  const words = ["tidebox", "run", "--server", location.origin];
  if (spec.base_image) words.push("--image", spec.base_image);
  if (spec.session_id) words.push("--session", spec.session_id);
  for (const [name, value] of Object.entries(spec.env ?? {})) words.push("--env", `${name}=${value}`);
  for (const name of Object.values(spec.packages ?? {}).flat()) words.push("--with", name);
  for (const pattern of spec.capture_patterns ?? []) words.push("--artifact", pattern);
  const program = spec.language ? codeOf(spec) : null;
  const beside = spec.files?.filter((file) => !program || file.path !== mainFileOf(spec)) ?? [];
  for (const file of beside) words.push("--file", `${file.path}:${file.path}`);
  for (const host of spec.egress?.hosts ?? []) words.push("--allow-host", host);
  if (spec.timeout_sec) words.push("--timeout", String(spec.timeout_sec));
  if (spec.resources?.memory_mb) words.push("--memory", `${spec.resources.memory_mb}M`);
  if (spec.resources?.cpu) words.push("--cpus", String(spec.resources.cpu));
  if (spec.resources?.pids) words.push("--pids", String(spec.resources.pids));
  const rest = program
    ? ["--language", program.language, "-c", program.code, ...spec.command.slice(1)]
    : ["--", ...spec.command];
  return [...words, ...rest].map(quoted).join(" ");
}

export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  // Pages that came by plain http from another machine have no clipboard of their own.
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
