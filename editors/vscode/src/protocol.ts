// The contract with `tidebox lsp`, as docs/lsp.md has it: names of commands, and the shapes of what goes over the wire.

import { NotificationType, RequestType } from "vscode-languageclient/node";

export const RUN = "tldw.sandbox.run";
export const CONFIGURE = "tldw.sandbox.configure";
export const OPEN_ARTIFACTS = "tldw.sandbox.openArtifacts";

/** Packages by language. */
export interface Packages {
  python?: string[];
  node?: string[];
}

/** The argument of `tldw.sandbox.run`: a file, a command, or (with neither) the last run again. */
export interface RunArguments {
  uri?: string;
  command?: string[];
  files?: unknown[];
  env?: Record<string, string>;
  base_image?: string;
  runtime?: string;
  timeout_sec?: number;
  startup_timeout_sec?: number;
  capture_patterns?: string[];
}

/** The answer of `tldw.sandbox.run`, when the run is over. */
export interface RunAnswer {
  run_id: string;
  phase: string;
  exit_code: number | null;
  log_stream_url?: string | null;
}

/** Defaults of runs: the initialization options, and what `workspace/didChangeConfiguration` carries under `tidebox`. */
export interface Defaults {
  base_image?: string;
  runtime?: string;
  timeout_sec?: number;
  startup_timeout_sec?: number;
  packages?: Packages;
  capture_patterns?: string[];
  resources?: { cpu?: number; memory_mb?: number };
}

/** One file that a run left behind. */
export interface Artifact {
  path: string;
  size: number;
  content_type?: string;
  /** Where its copy on this machine is. */
  uri?: string;
}

/** The answer of `tldw.sandbox.openArtifacts`. */
export interface ArtifactList {
  run_id: string;
  items: Artifact[];
  uri?: string;
  url?: string;
}

export type Stream = "stdout" | "stderr";

export interface RunStarted {
  run_id: string;
  command: string[];
  uri: string | null;
  log_stream_url: string | null;
  /** The `workDoneToken` of the request that started it. */
  token?: string | number | null;
}

export interface Output {
  run_id: string;
  stream: Stream;
  text: string;
}

/** All that a run printed to a stream; `cut` where even that has a limit. */
export interface WholeOutput {
  text: string;
  cut: boolean;
}

export interface RunEnded {
  run_id: string;
  phase: string;
  exit_code: number | null;
  reason: string | null;
  summary: string;
  artifacts: boolean;
  url: string | null;
  /** The streams of which not all was told. */
  cut?: Stream[];
}

export interface Notice {
  run_id: string | null;
  text: string;
}

export const runStarted = new NotificationType<RunStarted>("tidebox/runStarted");
export const output = new NotificationType<Output>("tidebox/output");
export const runEnded = new NotificationType<RunEnded>("tidebox/runEnded");
export const readOutput = new RequestType<{ run_id: string; stream: Stream }, WholeOutput, unknown>("tidebox/readOutput");
export const notice = new NotificationType<Notice>("tidebox/notice");
