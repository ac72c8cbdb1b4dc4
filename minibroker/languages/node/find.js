'use strict';

const { spawnSync } = require('node:child_process');
const { accessSync, constants, statSync } = require('node:fs');
const { delimiter, join } = require('node:path');

const ADVICE =
  'Install it with `pip install minibroker` or `pipx install minibroker`, ' +
  'or set MINIBROKER to the path of the executable.';

/**
 * Return the command of minibroker, and throw an error with all places that were searched.
 *
 * The executable of the package is for packages that contain one for their platform.
 */
function findCommand(env = process.env, folder = __dirname) {
  if (env.MINIBROKER) {
    if (isExecutable(env.MINIBROKER)) return [env.MINIBROKER];
    throw new Error(`MINIBROKER is ${env.MINIBROKER}, which is not an executable file. ${ADVICE}`);
  }
  const packaged = join(folder, 'bin', 'minibroker');
  if (isExecutable(packaged)) return [packaged];
  const searched = (env.PATH ?? '').split(delimiter).filter(Boolean);
  const inPath = (name) => searched.map((each) => join(each, name)).find(isExecutable);
  const installed = inPath('minibroker');
  if (installed) return [installed];
  const pythons = ['python3', 'python'].map(inPath).filter(Boolean);
  const python = pythons.find((each) => hasMinibroker(each, env));
  if (python) return [python, '-m', 'minibroker'];
  throw new Error(
    'minibroker was not found. Searched: the environment variable MINIBROKER (not set), ' +
      `${packaged}, minibroker in PATH (${searched.join(delimiter) || 'empty'}), ` +
      `a Python with minibroker (${pythons.join(', ') || 'no python3 or python in PATH'}). ${ADVICE}`,
  );
}

function isExecutable(path) {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

function hasMinibroker(python, env) {
  const program = 'import sys; from importlib.util import find_spec as f; sys.exit(not f("minibroker"))';
  return spawnSync(python, ['-c', program], { env }).status === 0;
}

module.exports = { findCommand };
