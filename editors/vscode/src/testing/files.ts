// Which paths are files of a folder. What names them is what a program printed.

import { lstatSync, realpathSync } from "node:fs";
import * as path from "node:path";

/** Whether there is a file of that path below a folder, and no link on the way to it. */
export function isFileOf(folder: string, file: string): boolean {
  try {
    const root = realpathSync(folder);
    const full = path.join(root, file);
    return full.startsWith(root + path.sep) && realpathSync(full) === full && lstatSync(full).isFile();
  } catch {
    return false;
  }
}
