# Packages: the programs of the machine that the tests run on, under store paths, and
# proxyd itself from what Cargo has built there already.
{ lib, system }:
let
  builders = {
    inherit system lib;

    runCommand =
      name: attrs: script:
      let
        # Nix ends a builder that closes its output before it exits, hence the last word.
        drv = derivation (
          {
            inherit name system;
            builder = "/bin/bash";
            args = [
              "-c"
              ''
                set -e
                ${script}
                :
              ''
            ];
            PATH = "/usr/local/bin:/usr/bin:/bin";
          }
          // removeAttrs attrs [ "meta" ]
        );
      in
      drv // attrs;

    writeText =
      name: text:
      builders.runCommand name {
        inherit text;
        passAsFile = [ "text" ];
      } ''cp "$textPath" "$out"'';

    writeShellScript =
      name: text:
      builders.runCommand name {
        text = "#!/bin/bash\n${text}";
        passAsFile = [ "text" ];
      } ''cp "$textPath" "$out"; chmod 0555 "$out"'';

    stdenv = rec {
      hostPlatform = { inherit system; };
      buildPlatform = hostPlatform // {
        canExecute = other: other.system == system;
      };
    };

    formats.json = _: { type = lib.types.anything; };

    # What the package is to be is said by its own expression; only the compiler's work
    # is not done again.
    rustPlatform.buildRustPackage =
      package:
      builders.runCommand "${package.pname}-${package.version}"
        {
          inherit (package) meta src;
          inherit (package) version;
          prebuilt = ./prebuilt;
        }
        ''
          export HOME=$PWD
          cp -r "$src" source
          chmod -R u+w source
          cd source
          install -Dm0755 -t "$out/bin" "$prebuilt/proxyd" "$prebuilt/proxyctl"
          ${package.postInstall}
        '';

    mkShell = attrs: builders.runCommand "shell" { } ''echo "${toString attrs.packages}" > "$out"'';

    testers.runNixOSTest =
      test:
      let
        given = test {
          inherit (builders) lib;
          pkgs = builders;
        };
        machines = lib.mapAttrsToList (
          _: machine:
          (lib.nixosSystem {
            modules = [
              machine
              { nixpkgs.hostPlatform = system; }
            ];
          }).config.system.build.toplevel
        ) given.nodes;
      in
      builders.runCommand "vm-test-${given.name}" { } ''
        printf '%s\n' ${toString machines} > "$out"
      '';

    # Where nixpkgs' own files are, the one that makes disk images among them.
    path = ./.;
    nixos = configuration: lib.nixosSystem { modules = [ configuration ]; };

    callPackage =
      function: overrides:
      let
        f = if builtins.isFunction function then function else import function;
      in
      f (builtins.intersectAttrs (builtins.functionArgs f) builders // overrides);
  }
  // lib.mapAttrs programs {
    bash = [ "bash" ];
    cargo = [ "cargo" ];
    clippy = [ "cargo-clippy" ];
    coreutils = [
      "ln"
      "mkdir"
      "rm"
    ];
    deadnix = [ "deadnix" ];
    gnugrep = [ "grep" ];
    gnused = [ "sed" ];
    libvirt = [ "virsh" ];
    nixfmt = [ "nixfmt" ];
    nixfmt-tree = [ "nixfmt" ];
    openssh = [ "ssh" ];
    pkg-config = [ "pkg-config" ];
    rustfmt = [ "rustfmt" ];
    systemd = [ "journalctl" ];
  };

  programs =
    name: names:
    builders.runCommand name { meta.mainProgram = builtins.head names; } ''
      mkdir -p "$out/bin"
      for program in ${toString names}; do ln -s "/usr/bin/$program" "$out/bin/"; done
    '';

  extended =
    packages:
    packages
    // {
      extend =
        overlay:
        let
          final = extended (packages // overlay final packages // { inherit callPackage; });
          callPackage =
            function: overrides:
            let
              f = if builtins.isFunction function then function else import function;
            in
            f (builtins.intersectAttrs (builtins.functionArgs f) final // overrides);
        in
        final;
    };
in
extended builders
