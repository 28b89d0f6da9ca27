// The settings `tldw.sandbox.*`, read into one typed value.

import * as vscode from "vscode";
import type { Defaults, Packages } from "./protocol";

export const SECTION = "tldw.sandbox";

/** The values of `tldw.sandbox.limits`, as package.json describes them. */
interface Limits {
  timeoutSec?: number;
  startupTimeoutSec?: number;
  memoryMb?: number;
  cpu?: number;
}

/** How the language server is started: another value of any of these means another process. */
export interface ServerSettings {
  command: string[];
  serverUrl: string;
  apiKey: string;
}

export function serverSettings(): ServerSettings {
  const read = vscode.workspace.getConfiguration(SECTION);
  return {
    command: words(read.get<unknown>("command")),
    serverUrl: text(read.get("serverUrl")).replace(/\/+$/, ""),
    apiKey: text(read.get("apiKey")),
  };
}

/** What the settings say about runs, in the words of the language server. */
export function defaults(): Defaults {
  const read = vscode.workspace.getConfiguration(SECTION);
  const limits = read.get<Limits>("limits") ?? {};
  const packages = read.get<Packages>("packages") ?? {};
  const resources = without({ cpu: limits.cpu, memory_mb: limits.memoryMb });
  return without({
    runtime: text(read.get("runtime")) || undefined,
    base_image: text(read.get("image")) || undefined,
    packages: Object.values(packages).some((names) => names?.length) ? without({ ...packages }) : undefined,
    capture_patterns: read.get<string[]>("capturePatterns"),
    timeout_sec: limits.timeoutSec,
    startup_timeout_sec: limits.startupTimeoutSec,
    resources: Object.keys(resources).length ? resources : undefined,
  });
}

export function showsOutput(): boolean {
  return vscode.workspace.getConfiguration(SECTION).get("showOutput", true);
}

/** Where a setting that somebody changes is written: with the folder it is about, where there is one. */
export function target(): vscode.ConfigurationTarget {
  return vscode.workspace.workspaceFolders?.length
    ? vscode.ConfigurationTarget.Workspace
    : vscode.ConfigurationTarget.Global;
}

/** A value without the keys that have none. */
function without<T extends object>(value: T): T {
  return Object.fromEntries(Object.entries(value).filter(([, held]) => held !== undefined)) as T;
}

function text(value: unknown): string {
  return typeof value === "string" ? value.trim() : "";
}

function words(value: unknown): string[] {
  if (Array.isArray(value)) return value.filter((word): word is string => typeof word === "string" && word !== "");
  return text(value) ? [text(value)] : [];
}
