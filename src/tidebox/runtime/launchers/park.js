// Parks a node and makes it the program it is handed: `node --require /.tidebox/park.js /.tidebox/park.js`.
//
// A preloaded module runs when node is ready and its main module is not yet looked for. This one waits there for the
// program block on stdin, puts the program's name where node takes it from, and leaves: node itself then runs the
// program, so that the module kind, the stack traces and the exit codes are its own.
//
// What remains different from a plain start: process.uptime() counts from the parking, below `[eval]` a stack trace has
// fewer lines of node's own, and process.stderr waits for its reader instead of keeping what a full pipe does not take.
'use strict';

{
  const fs = require('fs');
  const Module = require('module');
  const path = require('path');
  const vm = require('vm');

  const importModuleDynamically = vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;

  const readExactly = (size) => {
    const bytes = Buffer.allocUnsafeSlow(size);
    for (let filled = 0; filled < size; ) {
      const count = fs.readSync(0, bytes, filled, size - filled, null);
      if (count === 0) process.reallyExit(filled === 0 && size === 4 ? 0 : 126);
      filled += count;
    }
    return bytes;
  };

  const decode = (block) => {
    const fields = [];
    let offset = 0;
    for (let index = 0; index < 7; index++) {
      const start = offset + 4;
      offset = start + block.readUInt32BE(offset);
      if (offset > block.length) throw new RangeError('a field reaches beyond the block');
      fields.push(block.subarray(start, offset));
    }
    const words = (field) => (field.length ? field.toString().split('\0') : []);
    const [mode, cwd, file, source, , env, argv] = fields;
    return { mode: mode.toString(), cwd: cwd.toString(), file: file.toString(), source, env: words(env), argv: words(argv) };
  };

  // What a first console.log needs, loaded while nobody waits; stdout itself is left alone, a program may never use it.
  const warmUp = () => {
    require('tty');
    require('net');
    const { Console } = require('console');
    const { Writable } = require('stream');
    const nowhere = new Writable({ write: (chunk, encoding, done) => done() });
    new Console(nowhere, nowhere).log('%s', 'hello', { a: [1, 'b'] });
    // To learn about colors that has made stderr, and with it the pipe non-blocking: fs.writeSync(2) would lose output.
    process.stderr._handle?.setBlocking?.(true);
    new Module('')._compile('exports.a = () => 1;', '/warm');
  };

  // In `node -e` the names of the built-in modules are global.
  const defineBuiltins = () => {
    for (const name of Module.builtinModules) {
      if (name.startsWith('_') || name.includes('/')) continue;
      const set = (value) => {
        delete globalThis[name];
        globalThis[name] = value;
      };
      const get = () => {
        const library = require(name);
        delete globalThis[name];
        Object.defineProperty(globalThis, name, { get: () => library, set, configurable: true, enumerable: false });
        return library;
      };
      Object.defineProperty(globalThis, name, { get, set, configurable: true, enumerable: false });
    }
  };

  const evaluation = (source) => {
    const module = new Module('[eval]');
    module.filename = path.join(process.cwd(), '[eval]');
    module.paths = Module._nodeModulePaths(process.cwd());
    defineBuiltins();
    globalThis.__filename = '[eval]';
    if (/\bimport\b/.test(source)) {
      // Node warns of this option of its own at the first use, and never again.
      const { emitWarning } = process;
      process.emitWarning = () => {};
      vm.runInThisContext('import("node:fs")', { importModuleDynamically });
      process.emitWarning = emitWarning;
    }
    module._compile('Object.assign(globalThis, { module, exports, __dirname, require });', '[eval]-wrapper');
    return vm.runInThisContext.bind(vm, source, { filename: '[eval]', displayErrors: true, importModuleDynamically });
  };

  const become = (program) => {
    for (const item of program.env) {
      const equals = item.indexOf('=');
      process.env[item.slice(0, equals)] = item.slice(equals + 1);
    }
    if (program.cwd) process.chdir(program.cwd);
    const run = Module.runMain;
    let start;
    if (program.mode === 'code') {
      const source = program.source.toString();
      process.argv = [process.argv[0], ...program.argv];
      process.execArgv = ['-e', source];
      process._eval = source;
      start = evaluation(source);
    } else {
      if (program.mode === 'script') fs.writeFileSync(program.file, program.source, { mode: 0o644 });
      const main = path.resolve(program.file);
      process.argv = [process.argv[0], main, ...program.argv];
      process.execArgv = [];
      start = run.bind(Module, main);
    }
    // Node asks for this once, to start the main module; a bound function leaves no line in a stack trace.
    Object.defineProperty(Module, 'runMain', {
      configurable: true,
      enumerable: true,
      get: () => {
        Object.defineProperty(Module, 'runMain', { value: run, configurable: true, enumerable: true, writable: true });
        return start;
      },
    });
  };

  delete require.cache[__filename];
  process._preload_modules.length = 0;
  for (const key of Object.keys(Module._pathCache)) {
    if (Module._pathCache[key] === __filename) delete Module._pathCache[key];
  }
  if (require('worker_threads').isMainThread) {
    warmUp();
    try {
      become(decode(readExactly(readExactly(4).readUInt32BE(0))));
    } catch (error) {
      fs.writeSync(2, `${error.message}\n`);
      process.reallyExit(126);
    }
  } else {
    // A worker inherits the options of its process, those that brought this file along too.
    const ours = process.execArgv.indexOf(__filename);
    if (ours > 0) process.execArgv.splice(ours - 1, 2);
  }
}
