# A disk image of a machine, which here is a list of what would be on it.
{ pkgs, config, ... }:
pkgs.runCommand "disk-image" { } ''
  mkdir "$out"
  echo ${config.system.build.toplevel} > "$out/nixos.qcow2"
''
