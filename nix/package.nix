# Daemon, proxyctl, and what a host needs of them: unit, bus and polkit files, journal
# catalog, completions, man pages.
{
  lib,
  stdenv,
  rustPlatform,
  pkg-config,
  libvirt,
  gnused,
}:
let
  manifest = (lib.importTOML ../Cargo.toml).package;
in
rustPlatform.buildRustPackage {
  pname = manifest.name;
  inherit (manifest) version;

  src = lib.fileset.toSource {
    root = ./..;
    fileset = lib.fileset.unions [
      ../Cargo.toml
      ../Cargo.lock
      ../Makefile
      ../src
      ../tests
      ../benches
      ../dbus
      ../docs
      ../systemd
    ];
  };
  cargoLock.lockFile = ../Cargo.lock;

  nativeBuildInputs = [
    pkg-config
    gnused
  ];
  buildInputs = [ libvirt ];

  # Those of the programs themselves: the others need a bus, servers, or a host.
  cargoTestFlags = [ "--bins" ];

  # proxyctl writes its own completions, for which it has to run.
  postInstall = lib.optionalString (stdenv.buildPlatform.canExecute stdenv.hostPlatform) ''
    make install-data PREFIX=$out
  '';

  meta = {
    inherit (manifest) description;
    license = lib.licenses.asl20;
    mainProgram = "proxyd";
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
    ];
  };
}
