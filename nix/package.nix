# The Python application. llama-server is not part of it: the module, or PATH, brings one.
{
  lib,
  python3Packages,
}:

let
  project = (lib.importTOML ../pyproject.toml).project;
in
python3Packages.buildPythonApplication {
  pname = project.name;
  version = project.version;
  pyproject = true;

  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      ../pyproject.toml
      ../README.md
      ../LICENSE
      ../eventlog
      ../router
      ../projections
      ../replay
      ../dashboard
    ];
  };

  build-system = [ python3Packages.setuptools ];
  # By name from pyproject.toml, so that a new dependency needs no change here. Lower bounds are checked by pip there and
  # relaxed here, since a nixpkgs has one version of each.
  dependencies = map (name: python3Packages.${name}) (
    map (requirement: builtins.head (builtins.match "([A-Za-z0-9_-]+).*" requirement)) project.dependencies
  );
  pythonRelaxDeps = true;
  pythonImportsCheck = [
    "eventlog"
    "router.scheduler"
    "replay"
    "projections"
    "dashboard"
  ];

  meta = {
    description = project.description;
    license = lib.licenses.mit;
    mainProgram = "llama-router";
    platforms = lib.platforms.linux;
  };
}
