# Evaluates the module for every case, has the daemon check what comes of the good ones,
# and asserts what the rest of a machine gets.
{
  nixpkgs,
  pkgs,
  module,
  proxyd,
}:
let
  inherit (nixpkgs) lib;
  cases = import ./cases.nix { inherit pkgs; };

  machine =
    settings:
    (nixpkgs.lib.nixosSystem {
      modules = [
        module
        settings
        {
          nixpkgs.hostPlatform = lib.mkDefault pkgs.stdenv.hostPlatform.system;
          system.stateVersion = "25.11";
        }
      ];
    }).config;

  configured =
    proxyd:
    machine {
      services.proxyd = proxyd // {
        enable = true;
      };
    };

  # What the module's own assertions have against it. Other modules' opinions of so little
  # of a machine don't count.
  complaints =
    config:
    lib.filter (lib.hasPrefix "services.proxyd.") (
      map (assertion: assertion.message) (lib.filter (assertion: !assertion.assertion) config.assertions)
    );

  # The configuration, once every option of it has been read: a type complains then.
  read =
    proxyd:
    let
      config = configured proxyd;
    in
    builtins.deepSeq [
      config.services.proxyd.createPool
      config.services.proxyd.createNetwork
      config.services.proxyd.group
      config.systemd.services.proxyd.serviceConfig
      config.services.proxyd.configFile.text
    ] config;

  accepted = lib.mapAttrs (
    name: proxyd:
    let
      config = read proxyd;
    in
    assert lib.assertMsg (complaints config == [ ]) "${name}: ${toString (complaints config)}";
    config.services.proxyd.configFile
  ) cases.good;

  refusals = cases.bad // cases.ours;
  byAssertion = lib.mapAttrs (
    _:
    { option, module, ... }:
    lib.any (lib.hasPrefix "services.proxyd.${option}: ") (complaints (configured module))
  ) refusals;

  # Named by an assertion, refused by a type, whose words Nix lets nobody see in here, or
  # neither.
  refusedBy = lib.mapAttrs (
    name:
    { module, ... }:
    let
      asserted = builtins.tryEval byAssertion.${name};
      typed = builtins.tryEval (builtins.seq (read module) true);
    in
    if asserted.success && asserted.value then
      "assertion"
    else if !typed.success then
      "type"
    else
      "nothing"
  ) refusals;
  refusedByThe = what: lib.attrNames (lib.filterAttrs (_: by: by == what) refusedBy);
  wronglyAccepted = refusedByThe "nothing";

  facts = import ./facts.nix { inherit lib configured machine; };
  untrue = lib.attrNames (lib.filterAttrs (_: fact: !fact) facts);

  daemonRefuses = name: ''
    if ${proxyd}/bin/proxyd --check-config ${
      pkgs.writeText "bad.json" (builtins.toJSON cases.bad.${name}.json)
    } 2>said; then
      echo "the daemon accepts ${name}"; exit 1
    elif [ $? != 78 ]; then
      echo "${name}: another failure:"; cat said; exit 1
    fi
  '';
in
assert lib.assertMsg (wronglyAccepted == [ ]) "accepted by the module: ${toString wronglyAccepted}";
assert lib.assertMsg (untrue == [ ]) "not so: ${toString untrue}";
pkgs.runCommand "proxyd-module-tests" { } ''
  ${lib.concatMapStrings daemonRefuses (lib.attrNames cases.bad)}
  printf '%s\n' ${toString (lib.attrValues accepted)} > "$out"
''
// {
  # For `run`, which sees what a type says.
  typed = lib.mapAttrs (name: _: refusals.${name}.option) (
    lib.filterAttrs (_: by: by == "type") refusedBy
  );
  evaluated = lib.mapAttrs (
    _: { module, ... }: (read module).services.proxyd.configFile.text
  ) refusals;
}
