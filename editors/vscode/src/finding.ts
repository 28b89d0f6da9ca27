// Where the `tidebox` program is.

import { constants } from "node:fs";
import { access, stat } from "node:fs/promises";
import { homedir } from "node:os";
import * as path from "node:path";

const WINDOWS = process.platform === "win32";
const PROGRAM = WINDOWS ? "tidebox.exe" : "tidebox";
const SCRIPTS = WINDOWS ? "Scripts" : "bin";

/** Return the command that starts the language server, or nothing where no `tidebox` is installed.
 *
 * `configured` is what the settings name; `folders` are workspace folders whose own virtual environment may be used, so
 * they have to be trusted. */
export async function findServer(configured: string[], folders: string[]): Promise<string[] | undefined> {
  const [program, ...rest] = configured;
  if (program !== undefined) {
    const found = await resolve(program);
    if (found) return withVerb([found, ...rest]);
    // A whole command line in one string, unless it is the path of a program.
    const [first, ...others] = program.split(/\s+/);
    const split = first !== undefined && others.length ? await resolve(first) : undefined;
    return split ? withVerb([split, ...others, ...rest]) : undefined;
  }
  for (const candidate of candidates(folders)) {
    if (await isProgram(candidate)) return [candidate, "lsp"];
  }
  return undefined;
}

function candidates(folders: string[]): string[] {
  return [
    ...folders.flatMap((folder) => [".venv", "venv"].map((name) => path.join(folder, name, SCRIPTS, PROGRAM))),
    ...onPath(PROGRAM),
    // Where pip --user, pipx and uv put programs, also where a desktop's PATH does not have it.
    path.join(homedir(), ".local", "bin", PROGRAM),
  ];
}

function onPath(program: string): string[] {
  const directories = (process.env["PATH"] ?? "").split(path.delimiter).filter((part) => path.isAbsolute(part));
  return directories.map((directory) => path.join(directory, program));
}

async function resolve(program: string): Promise<string | undefined> {
  const expanded = program.replace(/^~(?=[/\\])/, homedir());
  const tried = path.isAbsolute(expanded) ? [expanded] : /[/\\]/.test(expanded) ? [] : onPath(expanded);
  for (const candidate of tried) if (await isProgram(candidate)) return candidate;
  return undefined;
}

function withVerb(command: string[]): string[] {
  return command.slice(1).includes("lsp") ? command : [...command, "lsp"];
}

async function isProgram(file: string): Promise<boolean> {
  try {
    await access(file, constants.X_OK);
    return (await stat(file)).isFile();
  } catch {
    return false;
  }
}
