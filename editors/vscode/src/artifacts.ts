// What runs left behind: a tree of runs and their files, which can be opened and saved.

import * as path from "node:path";
import * as vscode from "vscode";
import type { LanguageServer } from "./languageServer";
import type { Listener } from "./runs";
import { Artifact, ArtifactList, OPEN_ARTIFACTS, RunEnded, RunStarted } from "./protocol";
import { SECTION } from "./settings";

export const VIEW = `${SECTION}.artifacts`;
const SCHEME = "tidebox-artifact";
// Older ones are still where the run was; the tree is for the work at hand.
const KEPT_RUNS = 20;

interface RunNode {
  kind: "run";
  id: string;
  label: string;
  items: Artifact[];
}

interface FileNode {
  kind: "file";
  run: RunNode;
  artifact: Artifact;
}

type Node = RunNode | FileNode;

export class Artifacts implements Listener, vscode.TreeDataProvider<Node>, vscode.FileSystemProvider, vscode.Disposable {
  private readonly runs: RunNode[] = [];
  private readonly labels = new Map<string, string>();
  private readonly changed = new vscode.EventEmitter<void>();
  private readonly view: vscode.TreeView<Node>;
  private readonly registration: vscode.Disposable;

  readonly onDidChangeTreeData = this.changed.event;
  readonly onDidChangeFile = new vscode.EventEmitter<vscode.FileChangeEvent[]>().event;

  constructor(private readonly server: () => LanguageServer) {
    this.view = vscode.window.createTreeView<Node>(VIEW, { treeDataProvider: this });
    // Of a scheme of their own, so that nobody takes them for files of the workspace, and read-only.
    this.registration = vscode.workspace.registerFileSystemProvider(SCHEME, this, { isReadonly: true });
  }

  started(run: RunStarted): void {
    this.labels.set(run.run_id, run.command.join(" "));
  }

  ended(run: RunEnded): void {
    const label = this.labels.get(run.run_id);
    this.labels.delete(run.run_id);
    // The list of a run that ended a moment ago: what fails here is said when somebody asks for it.
    if (run.artifacts) void this.load(run.run_id, label).catch(() => undefined);
  }

  /** Show the artifacts of a run, of the last one where none is named. */
  async open(runId?: string): Promise<ArtifactList> {
    const list = await this.server().execute<ArtifactList>(OPEN_ARTIFACTS, runId === undefined ? {} : { run_id: runId });
    const run = this.put({ ...list, items: await changed(list.items) });
    await vscode.commands.executeCommand(`${VIEW}.focus`);
    if (run.items.length) await this.view.reveal(run, { expand: true, focus: true });
    else void vscode.window.showInformationMessage("The run left no artifacts.");
    return list;
  }

  async save(node: FileNode): Promise<void> {
    const name = path.posix.basename(node.artifact.path);
    const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
    const to = await vscode.window.showSaveDialog({
      title: `Save ${name}`,
      defaultUri: folder ? vscode.Uri.joinPath(folder, name) : vscode.Uri.file(name),
    });
    if (to) await vscode.workspace.fs.writeFile(to, await this.readFile(uriOf(node)));
  }

  // The tree.

  getTreeItem(node: Node): vscode.TreeItem {
    if (node.kind === "run") {
      const item = new vscode.TreeItem(node.label, vscode.TreeItemCollapsibleState.Expanded);
      item.id = node.id;
      item.iconPath = new vscode.ThemeIcon("package");
      item.description = node.items.length === 1 ? "1 file" : `${node.items.length} files`;
      item.tooltip = node.id;
      return item;
    }
    const item = new vscode.TreeItem(uriOf(node), vscode.TreeItemCollapsibleState.None);
    item.id = `${node.run.id}/${node.artifact.path}`;
    item.label = node.artifact.path;
    item.description = size(node.artifact.size);
    item.contextValue = "artifact";
    item.command = { command: "vscode.open", title: "Open", arguments: [uriOf(node)] };
    return item;
  }

  getChildren(node?: Node): Node[] {
    if (!node) return this.runs;
    return node.kind === "run" ? node.items.map((artifact) => ({ kind: "file", run: node, artifact })) : [];
  }

  getParent(node: Node): Node | undefined {
    return node.kind === "file" ? node.run : undefined;
  }

  // The files, for the editors that open them.

  stat(uri: vscode.Uri): vscode.FileStat {
    return { type: vscode.FileType.File, ctime: 0, mtime: 0, size: this.find(uri).size };
  }

  async readFile(uri: vscode.Uri): Promise<Uint8Array> {
    const copy = this.find(uri).uri;
    if (copy === undefined) throw vscode.FileSystemError.Unavailable(uri);
    return await vscode.workspace.fs.readFile(vscode.Uri.parse(copy, true));
  }

  watch(): vscode.Disposable {
    return new vscode.Disposable(() => undefined);
  }

  readDirectory(uri: vscode.Uri): never {
    throw vscode.FileSystemError.FileNotADirectory(uri);
  }

  createDirectory(uri: vscode.Uri): never {
    throw vscode.FileSystemError.NoPermissions(uri);
  }

  writeFile(uri: vscode.Uri): never {
    throw vscode.FileSystemError.NoPermissions(uri);
  }

  delete(uri: vscode.Uri): never {
    throw vscode.FileSystemError.NoPermissions(uri);
  }

  rename(uri: vscode.Uri): never {
    throw vscode.FileSystemError.NoPermissions(uri);
  }

  dispose(): void {
    this.view.dispose();
    this.registration.dispose();
    this.changed.dispose();
  }

  private async load(runId: string, label?: string): Promise<void> {
    const list = await this.server().execute<ArtifactList>(OPEN_ARTIFACTS, { run_id: runId });
    const items = await changed(list.items);
    if (items.length) this.put({ ...list, items }, label);
  }

  private put(list: ArtifactList, label?: string): RunNode {
    const known = this.runs.findIndex((run) => run.id === list.run_id);
    const [before] = known >= 0 ? this.runs.splice(known, 1) : [];
    const run: RunNode = { kind: "run", id: list.run_id, label: label ?? before?.label ?? list.run_id, items: list.items };
    this.runs.unshift(run);
    this.runs.splice(KEPT_RUNS);
    this.changed.fire();
    return run;
  }

  private find(uri: vscode.Uri): Artifact {
    const run = this.runs.find((held) => held.id === uri.authority);
    const artifact = run?.items.find((held) => `/${held.path}` === uri.path);
    if (!artifact) throw vscode.FileSystemError.FileNotFound(uri);
    return artifact;
  }
}

/** The artifacts that are not what the run was given: patterns match files of the workspace too. */
async function changed(items: Artifact[]): Promise<Artifact[]> {
  const kept = await Promise.all(items.map(async (item) => !(await isOfWorkspace(item))));
  return items.filter((_, index) => kept[index]);
}

async function isOfWorkspace(item: Artifact): Promise<boolean> {
  if (item.uri === undefined) return false;
  const copy = vscode.Uri.parse(item.uri, true);
  for (const folder of vscode.workspace.workspaceFolders ?? []) {
    const own = vscode.Uri.joinPath(folder.uri, item.path);
    try {
      if ((await vscode.workspace.fs.stat(own)).size !== item.size) continue;
      const [left, sent] = await Promise.all([copy, own].map((uri) => vscode.workspace.fs.readFile(uri)));
      if (Buffer.compare(left!, sent!) === 0) return true;
    } catch {
      // Not a file of the workspace.
    }
  }
  return false;
}

function uriOf(node: FileNode): vscode.Uri {
  return vscode.Uri.from({ scheme: SCHEME, authority: node.run.id, path: `/${node.artifact.path}` });
}

function size(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}
