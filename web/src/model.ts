// What the server answers, as far as the pages look at it.
export type Phase = "queued" | "starting" | "running" | "completed" | "failed" | "timed_out" | "killed";
export const PHASES: Phase[] = ["queued", "starting", "running", "completed", "failed", "timed_out", "killed"];
export const isOver = (phase: Phase) => !["queued", "starting", "running"].includes(phase);

export interface Limits {
  cpu?: number | null;
  memory_mb?: number | null;
  pids?: number | null;
  nofile?: number | null;
  startup_timeout_sec?: number | null;
  timeout_sec?: number | null;
}

export interface Usage {
  cpu_time_sec?: number | null;
  wall_time_sec?: number | null;
  peak_rss_mb?: number | null;
  pids?: number | null;
  log_bytes?: number | null;
  log_truncated?: boolean | null;
  artifact_bytes?: number | null;
  files_left_out?: Record<string, number> | null;
  oom_kills?: number | null;
  limits: Limits;
}

export interface Run {
  run_id: string;
  session_id: string | null;
  user_id?: string;
  phase: Phase;
  exit_code: number | null;
  signal: number | null;
  reason_code: string | null;
  message: string | null;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  estimated_start_time?: string | null;
  runtime: string;
  base_image: string;
  image_digest: string | null;
  network_policy: string;
  trust_level: string | null;
  labels: Record<string, string>;
  resource_usage: Usage;
  log_stream_url: string | null;
  /** Told of one run alone, and only where it is so. */
  takes_input?: boolean;
  node_id?: string;
  policy_hash: string;
}

export interface Page<T> {
  items: T[];
  total: number;
  limit: number;
  offset: number;
  has_more: boolean;
}

export interface Artifact {
  path: string;
  size: number;
  content_type: string;
  is_link: boolean;
  link_target: string | null;
  download_url: string | null;
}

export interface Guarantee {
  guarantee: string;
  enforced: boolean;
  how: string;
}

export interface Runtime {
  name: string;
  available: boolean;
  version: string | null;
  default_images: string[];
  max_cpu: number;
  max_mem_mb: number;
  max_log_bytes: number;
  max_concurrent_runs: number;
  queue_max_length: number;
  workspace_cap_mb: number;
  boundary_class: string;
  untrusted_eligible: boolean;
  egress_allowlist_supported: boolean;
  isolation: { network_policies: string[]; guarantees: Guarantee[]; facts: Record<string, string> };
  languages: { name: string; file: string }[];
  notes: string | null;
}

export interface Server {
  default_runtime: string;
  execution_enabled: boolean;
  languages: string[];
  trust_levels: string[];
  store_mode: string;
  runtimes: Runtime[];
}

export interface Me {
  user_id: string;
  roles: string[];
  admin: boolean;
}

export interface RunSpec {
  spec_version: string;
  command: string[];
  /** Of the file that the first word of the command names. */
  language?: string;
  base_image?: string;
  session_id?: string;
  runtime?: string;
  packages?: Record<string, string[]>;
  env?: Record<string, string>;
  labels?: Record<string, string>;
  files?: { path: string; content_b64: string }[];
  timeout_sec?: number;
  resources?: { cpu?: number; memory_mb?: number; pids?: number };
  network_policy?: string;
  egress?: { hosts?: string[] };
  trust_level?: string;
  capture_patterns?: string[];
  interactive?: boolean;
}
