// What a test is, and what is known of it after a run. Nothing here knows VS Code.

/** A test or a group of tests in a file, as its text shows it. */
export interface Found {
  name: string;
  /** From 0. */
  line: number;
  children: Found[];
}

/** Tests of one file to run: all of it where `names` is empty, else those, each as the path of its names. */
export interface Selection {
  /** Relative to the workspace folder, with forward slashes. */
  file: string;
  names: string[][];
}

export type State = "passed" | "skipped" | "failed" | "errored";

/** What a program said of one test; of a whole file where `names` is empty. */
export interface Result {
  /** Where the program does not tell, it ran one file or directory. */
  file?: string | undefined;
  names: string[];
  state: State;
  message?: string | undefined;
  /** Where it failed; `line` from 0. */
  place?: { file: string; line: number } | undefined;
  durationMs?: number | undefined;
}

/** Reads what a test program prints, line by line. */
export interface Reader {
  line(stream: "stdout" | "stderr", text: string): Result[];
  /** What is known only now that there is no more. */
  end(): Result[];
}

export interface Framework {
  name: string;
  /** Files with the same value are run together. */
  together(file: string): string;
  command(selections: Selection[]): string[];
  env?: Record<string, string>;
  reader(selections: Selection[]): Reader;
  /** The Python package it is, where a language does not bring it, and what is said where that is missing. */
  package?: { name: string; missing: RegExp };
}

/** Where the workspace folder is in a sandbox. */
export const WORKSPACE = "/workspace/";

/** Return a path of the sandbox relative to the workspace folder, or nothing where it is elsewhere. */
export function inWorkspace(path: string): string | undefined {
  if (path.startsWith(WORKSPACE)) path = path.slice(WORKSPACE.length);
  const parts = path.split("/");
  const elsewhere = path.startsWith("/") || parts.includes("..") || parts.includes("site-packages") || parts.includes("node_modules");
  return elsewhere ? undefined : parts.filter((part) => part !== ".").join("/");
}
