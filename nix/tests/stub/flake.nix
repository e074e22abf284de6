{
  description = "As much of nixpkgs as the module's tests need, for where the real one can't be had";

  outputs =
    { self }:
    let
      packagesOf = import ./packages.nix;
      lib = import ./lib.nix // {
        nixosSystem = import ./nixos.nix { inherit lib packagesOf; };
      };
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [
        "x86_64-linux"
        "aarch64-linux"
      ] (system: packagesOf { inherit lib system; });
    };
}
