// The Test Explorer: tests of the workspace, run in the sandbox.

import * as vscode from "vscode";
import { isCancelled } from "../commands";
import { messageOf } from "../languageServer";
import type { Packages } from "../protocol";
import type { Runs } from "../runs";
import { SECTION, target } from "../settings";
import { discover, Discovery, mayHaveTests, PATTERN } from "./discover";
import type { Found, Framework, Selection } from "./model";
import { Report, TestData } from "./report";

const ELSEWHERE = "**/{node_modules,.venv,venv,vendor,.git,__pycache__,dist,build,out}/**";
// A workspace with more is looked through in part, a file that is larger is not written by hand.
const MOST_FILES = 2000;
const MOST_BYTES = 1024 * 1024;

/** Files whose tests one run checks. */
interface Group {
  folder: vscode.WorkspaceFolder;
  framework: Framework;
  selections: Selection[];
  items: vscode.TestItem[];
}

export class TestExplorer implements vscode.Disposable {
  private readonly controller = vscode.tests.createTestController("tldw.sandbox.tests", "Sandbox");
  private readonly data = new WeakMap<vscode.TestItem, TestData>();
  private readonly subscriptions: vscode.Disposable[] = [this.controller];

  constructor(private readonly runs: Runs) {
    this.controller.resolveHandler = async (item) => {
      if (!item) await this.findAll();
    };
    this.controller.refreshHandler = (cancel) => this.findAll(cancel);
    this.controller.createRunProfile(
      "Run in Sandbox",
      vscode.TestRunProfileKind.Run,
      (request) => this.run(request),
      true,
    );
    const watcher = vscode.workspace.createFileSystemWatcher(PATTERN);
    this.subscriptions.push(
      watcher,
      watcher.onDidCreate((uri) => void this.read(uri)),
      watcher.onDidChange((uri) => void this.read(uri)),
      watcher.onDidDelete((uri) => this.controller.items.delete(uri.toString())),
      vscode.workspace.onDidOpenTextDocument((document) => this.look(document)),
      vscode.workspace.onDidChangeTextDocument(({ document }) => this.look(document)),
    );
    for (const document of vscode.workspace.textDocuments) this.look(document);
  }

  dispose(): void {
    for (const subscription of this.subscriptions) subscription.dispose();
  }

  private async findAll(cancel?: vscode.CancellationToken): Promise<void> {
    const found = await vscode.workspace.findFiles(PATTERN, ELSEWHERE, MOST_FILES, cancel);
    const there = new Set(found.map((uri) => uri.toString()));
    this.controller.items.forEach((item) => {
      if (!there.has(item.id)) this.controller.items.delete(item.id);
    });
    for (const uri of found) {
      if (cancel?.isCancellationRequested) return;
      await this.read(uri);
    }
  }

  /** Look at a file on disk, unless an editor has a text of it. */
  private async read(uri: vscode.Uri): Promise<void> {
    const open = vscode.workspace.textDocuments.find((document) => document.uri.toString() === uri.toString());
    if (open) return this.look(open);
    try {
      const { size } = await vscode.workspace.fs.stat(uri);
      if (size > MOST_BYTES) return;
      this.put(uri, new TextDecoder().decode(await vscode.workspace.fs.readFile(uri)));
    } catch {
      // Gone meanwhile, or not to be read: it has no tests to show.
      this.controller.items.delete(uri.toString());
    }
  }

  private look(document: vscode.TextDocument): void {
    if (document.uri.scheme === "file") this.put(document.uri, document.getText());
  }

  private put(uri: vscode.Uri, text: string): void {
    const folder = vscode.workspace.getWorkspaceFolder(uri);
    const file = vscode.workspace.asRelativePath(uri, false);
    if (!folder || !mayHaveTests(file) || text.length > MOST_BYTES) return;
    const found = discover(file, text);
    if (!found) return this.controller.items.delete(uri.toString());
    const item = this.controller.items.get(uri.toString()) ?? this.controller.createTestItem(uri.toString(), file, uri);
    this.fill(item, { folder, file, framework: found.framework, names: [] }, found.tests);
    this.controller.items.add(item);
  }

  /** Give an item its children; those that were there stay the same items, with their results. */
  private fill(item: vscode.TestItem, data: TestData, tests: Discovery["tests"]): void {
    this.data.set(item, data);
    const children = tests.map((test: Found) => {
      const id = `${item.id}::${test.name}`;
      const child = item.children.get(id) ?? this.controller.createTestItem(id, test.name, item.uri);
      child.range = new vscode.Range(test.line, 0, test.line, 0);
      this.fill(child, { ...data, names: [...data.names, test.name] }, test.children);
      return child;
    });
    item.children.replace(children);
  }

  private async run(request: vscode.TestRunRequest): Promise<void> {
    // Asked for all of them before anybody looked which there are.
    if (!request.include) await this.findAll();
    const run = this.controller.createTestRun(request);
    const cancel = run.token;
    let missing: string | undefined;
    try {
      const groups = this.groups(request);
      for (const group of groups) for (const item of group.items) run.enqueued(item);
      for (const group of groups) {
        if (cancel.isCancellationRequested) break;
        missing = (await this.runGroup(run, group, cancel)) ?? missing;
      }
    } finally {
      run.end();
    }
    if (missing === undefined || !(await offerPackage(missing))) return;
    // Another request: what one request has several results for is as bad as the worst of them.
    await this.run(new vscode.TestRunRequest(request.include, request.exclude, request.profile));
  }

  /** Run some tests; answer the name of a package without which they cannot. */
  private async runGroup(
    run: vscode.TestRun,
    group: Group,
    cancel: vscode.CancellationToken,
  ): Promise<string | undefined> {
    const { folder, framework, selections, items } = group;
    const report = new Report(
      run,
      folder,
      framework,
      framework.reader(selections),
      items.map((item) => [this.data.get(item)!, item]),
    );
    const uri = vscode.Uri.joinPath(folder.uri, selections[0]!.file).toString();
    const command = framework.command(selections);
    for (const item of items) run.started(item);
    try {
      await this.runs.run({ uri, command, ...(framework.env && { env: framework.env }) }, [report], cancel);
      await report.catchUp(framework.reader(selections), (id, stream) => this.runs.readOutput(id, stream));
      report.close();
    } catch (error) {
      report.close(isCancelled(error) ? undefined : messageOf(error));
    }
    return report.programMissing ? framework.package?.name : undefined;
  }

  /** The tests that were asked for, as few runs as can tell them apart. */
  private groups(request: vscode.TestRunRequest): Group[] {
    const excluded = new Set(request.exclude);
    const chosen = new Set<vscode.TestItem>();
    const choose = (item: vscode.TestItem): void => {
      if (excluded.has(item)) return;
      if (item.children.size) item.children.forEach(choose);
      else chosen.add(item);
    };
    if (request.include) request.include.forEach(choose);
    else this.controller.items.forEach(choose);

    const byFile = new Map<string, vscode.TestItem[]>();
    for (const item of chosen) {
      const file = item.uri!.toString();
      byFile.set(file, [...(byFile.get(file) ?? []), item]);
    }
    const groups = new Map<string, Group>();
    for (const [uri, items] of byFile) {
      const { folder, file, framework } = this.data.get(items[0]!)!;
      const all = items.length === leaves(this.controller.items.get(uri)!);
      const names = all ? [] : items.map((item) => this.data.get(item)!.names);
      const key = JSON.stringify([folder.uri.toString(), framework.name, framework.together(file)]);
      const group = groups.get(key) ?? { folder, framework, selections: [], items: [] };
      group.selections.push({ file, names });
      group.items.push(...items);
      groups.set(key, group);
    }
    return [...groups.values()];
  }
}

function leaves(item: vscode.TestItem): number {
  if (!item.children.size) return 1;
  let count = 0;
  item.children.forEach((child) => (count += leaves(child)));
  return count;
}

/** Offer to have a package in the sandboxes of this workspace: nothing is fetched unasked. */
async function offerPackage(name: string): Promise<boolean> {
  const add = "Add and Run Again";
  const choice = await vscode.window.showWarningMessage(
    `${name} is not in the sandbox. Add it to the packages of this workspace?`,
    add,
  );
  if (choice !== add) return false;
  const settings = vscode.workspace.getConfiguration(SECTION);
  const held = settings.get<Packages>("packages") ?? {};
  await settings.update("packages", { ...held, python: [...(held.python ?? []), name] }, target());
  return true;
}
