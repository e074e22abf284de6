{
  description = "Runs HTTP forward proxies as libvirt guests, one D-Bus object each";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      eachSystem =
        outputsOf:
        lib.genAttrs [
          "x86_64-linux"
          "aarch64-linux"
        ] (system: outputsOf nixpkgs.legacyPackages.${system});
      package = pkgs: pkgs.callPackage ./nix/package.nix { };
    in
    {
      packages = eachSystem (pkgs: {
        default = package pkgs;
        proxyd = package pkgs;
      });

      overlays.default = final: _prev: { proxyd = package final; };

      # The package comes from the host's own nixpkgs, through the overlay.
      nixosModules = {
        default = self.nixosModules.proxyd;
        proxyd = {
          imports = [ ./nix/module ];
          nixpkgs.overlays = [ self.overlays.default ];
        };
      };

      nixosConfigurations.example = lib.nixosSystem {
        modules = [
          self.nixosModules.default
          ./nix/example.nix
        ];
      };

      checks = eachSystem (pkgs: {
        module = import ./nix/tests {
          inherit nixpkgs pkgs;
          module = self.nixosModules.default;
          proxyd = package pkgs;
        };
        machine = pkgs.testers.runNixOSTest (import ./nix/tests/machine.nix self.nixosModules.default);
      });

      devShells = eachSystem (pkgs: {
        default = pkgs.mkShell {
          inputsFrom = [ (package pkgs) ];
          packages = [
            pkgs.cargo
            pkgs.clippy
            pkgs.deadnix
            pkgs.nixfmt
            pkgs.rustfmt
          ];
        };
      });

      formatter = eachSystem (pkgs: pkgs.nixfmt-tree);
    };
}
