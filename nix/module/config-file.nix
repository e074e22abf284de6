# The configuration file as a derivation that exists only if the daemon accepts it. What
# it says is in its attribute `text`.
{ lib, pkgs }:
cfg:
let
  inherit (import ./rendering.nix { inherit lib; }) render;
  # A package for another kind of machine can't be run here: the daemon checks at start.
  runs = pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform;
in
pkgs.runCommand "proxyd-config.json"
  {
    text = builtins.toJSON (render cfg) + "\n";
    passAsFile = [ "text" ];
    preferLocalBuild = true;
  }
  ''
    ${lib.optionalString runs ''${cfg.package}/bin/proxyd --check-config "$textPath"''}
    cp "$textPath" "$out"
  ''
