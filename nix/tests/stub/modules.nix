# A module system: options with types, definitions with conditions and priorities, and
# submodules, as NixOS' manual describes them. It has no ordering, no freeform modules and
# no disabled ones.
lib:
let
  inherit (builtins)
    all
    attrNames
    concatLists
    concatMap
    concatStringsSep
    elem
    filter
    foldl'
    head
    isAttrs
    isFunction
    isList
    isString
    length
    map
    mapAttrs
    ;

  shown = concatStringsSep ".";
  marked = mark: value: isAttrs value && value._type or null == mark;

  properties = rec {
    mkIf = condition: content: {
      _type = "if";
      inherit condition content;
    };
    mkMerge = contents: {
      _type = "merge";
      inherit contents;
    };
    mkOverride = priority: content: {
      _type = "override";
      inherit priority content;
    };
    mkDefault = mkOverride 1000;
    mkForce = mkOverride 50;
    mkOption = attrs: attrs // { _type = "option"; };
    mkEnableOption =
      what:
      mkOption {
        type = types.bool;
        default = false;
        example = true;
        description = "Whether to enable ${what}.";
      };
    literalExpression = text: {
      _type = "literalExpression";
      inherit text;
    };
    literalMD = text: {
      _type = "literalMD";
      inherit text;
    };
  };

  ordinary = 100;
  ofOption = 1500;

  # Conditions and priorities of a whole attribute set, moved to its values.
  pushDown =
    value:
    if marked "if" value then
      map (mapAttrs (_: properties.mkIf value.condition)) (pushDown value.content)
    else if marked "override" value then
      map (mapAttrs (_: properties.mkOverride value.priority)) (pushDown value.content)
    else if marked "merge" value then
      concatMap pushDown value.contents
    else
      [ value ];

  # The values that count, with their priority.
  discharge =
    priority: value:
    if marked "if" value then
      (if value.condition then discharge priority value.content else [ ])
    else if marked "override" value then
      discharge value.priority value.content
    else if marked "merge" value then
      concatMap (discharge priority) value.contents
    else
      [ { inherit priority value; } ];

  strongest =
    definitions:
    let
      least = foldl' (
        least: { priority, ... }: if priority < least then priority else least
      ) 10000 definitions;
    in
    map (definition: definition.value) (filter (definition: definition.priority == least) definitions);

  display =
    value:
    if isFunction value then
      "a function"
    else if isAttrs value then
      "a set with ${concatStringsSep ", " (attrNames value)}"
    else if isList value then
      "a list"
    else
      builtins.toJSON value;

  # Several definitions of one thing, of `type`.
  mergeChecked =
    path: type: values:
    let
      wrong = filter (value: !type.check value) values;
    in
    if wrong != [ ] then
      throw "A definition for option `${shown path}' is not of type `${type.description}': ${display (head wrong)}"
    else
      type.merge path values;

  evalOption =
    path: option: definitions:
    let
      default =
        if option ? default then
          [
            {
              priority = ofOption;
              value = option.default;
            }
          ]
        else
          [ ];
      values = strongest (
        concatMap (discharge ordinary) definitions
        ++ concatMap ({ priority, value }: discharge priority value) default
      );
      merged = mergeChecked path option.type values;
    in
    if values == [ ] then
      throw "The option `${shown path}' is used but not defined."
    else if option.readOnly or false && definitions != [ ] then
      throw "The option `${shown path}' is read-only, but it is set."
    else
      (option.apply or (value: value)) merged;

  # The tree of values for a tree of options.
  evalTree =
    path: options: definitions:
    let
      pushed = concatMap pushDown definitions;
      unknown = filter (name: !options ? ${name} && name != "_module") (concatMap attrNames pushed);
      at =
        name: concatMap (definition: if definition ? ${name} then [ definition.${name} ] else [ ]) pushed;
      value =
        name: option:
        if marked "option" option then
          evalOption (path ++ [ name ]) option (at name)
        else
          evalTree (path ++ [ name ]) option (at name);
    in
    if unknown != [ ] then
      throw "The option `${shown (path ++ [ (head unknown) ])}' does not exist."
    else
      mapAttrs value options;

  mergeOptions = foldl' lib.recursiveUpdate { };

  # A module in any of its forms, and all that it imports.
  collect =
    arguments: module:
    let
      loaded = if isFunction module || isAttrs module then module else import module;
      attrs = if isFunction loaded then loaded arguments else loaded;
      structured = attrs ? config || attrs ? options || attrs ? imports;
      config =
        attrs.config or (removeAttrs attrs [
          "imports"
          "options"
          "_file"
        ]);
    in
    concatMap (collect arguments) (attrs.imports or [ ])
    ++ [
      {
        options = attrs.options or { };
        # `imports` beside plain definitions is allowed, too.
        config =
          if structured && !attrs ? config && !attrs ? imports && attrs ? options then { } else config;
      }
    ];

  evalModules =
    {
      modules,
      specialArgs ? { },
      prefix ? [ ],
    }:
    let
      collected = concatMap (collect (specialArgs // { inherit config lib options; })) modules;
      lib = import ./lib.nix;
      options = mergeOptions (map (module: module.options) collected);
      config = evalTree prefix options (map (module: module.config) collected);
    in
    {
      inherit config options;
    };

  mkType =
    {
      name,
      description ? name,
      check ? _: true,
      merge ? onlyOne,
      subOptions ? { },
      # What stands in the place of a name that is the operator's to choose.
      placeholder ? [ ],
    }:
    {
      _type = "option-type";
      inherit
        name
        description
        check
        merge
        subOptions
        placeholder
        ;
    };

  onlyOne =
    path: values:
    if all (value: value == head values) values then
      head values
    else
      throw "The option `${shown path}' has conflicting definition values: ${concatStringsSep ", " (map display values)}";

  isPathLike =
    value: builtins.isPath value || isString value && lib.hasPrefix "/" value || value ? outPath;

  types = rec {
    bool = mkType {
      name = "boolean";
      check = builtins.isBool;
    };
    int = mkType {
      name = "signed integer";
      check = builtins.isInt;
    };
    ints.between =
      least: most:
      addCheck int (value: value >= least && value <= most)
      // {
        description = "integer between ${toString least} and ${toString most} (both inclusive)";
      };
    str = mkType {
      name = "string";
      check = isString;
    };
    lines = str // {
      description = "strings concatenated with \"\\n\"";
      merge = _: concatStringsSep "\n";
    };
    path = mkType {
      name = "absolute path";
      check = isPathLike;
    };
    package = mkType {
      name = "package";
      check = value: value.type or null == "derivation" || isPathLike value;
    };
    unspecified = mkType {
      name = "unspecified value";
      merge = _: values: if length values == 1 then head values else mergeAnything values;
    };
    anything = unspecified // {
      description = "anything";
    };
    enum =
      values:
      mkType {
        name = "one of ${concatStringsSep ", " (map builtins.toJSON values)}";
        check = value: elem value values;
      };
    nullOr =
      type:
      type
      // {
        description = "null or ${type.description}";
        check = value: value == null || type.check value;
        merge =
          path: values:
          if all (value: value == null) values then
            null
          else
            type.merge path (filter (value: value != null) values);
      };
    either =
      one: two:
      mkType {
        name = "${one.description} or ${two.description}";
        check = value: one.check value || two.check value;
        merge = path: values: if all one.check values then one.merge path values else two.merge path values;
        subOptions = one.subOptions // two.subOptions;
      };
    addCheck = type: extra: type // { check = value: type.check value && extra value; };
    listOf =
      type:
      mkType {
        name = "list of ${type.description}";
        check = isList;
        merge =
          path: values:
          concatMap (value: map (item: mergeChecked path type [ item ]) (concatMap plain value)) values;
        inherit (type) subOptions;
        placeholder = [ "*" ] ++ type.placeholder;
      };
    attrsOf =
      type:
      mkType {
        name = "attribute set of ${type.description}";
        check = isAttrs;
        merge =
          path: values:
          let
            pushed = concatMap pushDown values;
            names = lib.unique (concatMap attrNames pushed);
            at = name: concatMap (value: if value ? ${name} then [ value.${name} ] else [ ]) pushed;
            there = filter (name: concatMap (discharge ordinary) (at name) != [ ]) names;
          in
          lib.genAttrs there (name: evalOption (path ++ [ name ]) { inherit type; } (at name));
        inherit (type) subOptions;
        placeholder = [ "<name>" ] ++ type.placeholder;
      };
    submodule =
      module:
      mkType {
        name = "submodule";
        check = value: isAttrs value || isFunction value;
        merge =
          path: values:
          (evalModules {
            modules = [ module ] ++ map (value: if isFunction value then value else { config = value; }) values;
            prefix = path;
          }).config;
        subOptions = (evalModules { modules = [ module ]; }).options;
      };
  };

  plain = value: map (definition: definition.value) (discharge ordinary value);

  mergeAnything =
    values:
    let
      whole = map (definition: definition.value) (concatMap (discharge ordinary) values);
    in
    if all isAttrs whole then
      foldl' lib.recursiveUpdate { } whole
    else if all isList whole then
      concatLists whole
    else
      onlyOne [ "anything" ] whole;

  # Every option below `options`, with its place and what is said of it.
  documented =
    path: options:
    concatLists (
      lib.mapAttrsToList (
        name: option:
        let
          loc = path ++ [ name ];
        in
        if !marked "option" option then
          documented loc option
        else if option.internal or false then
          [ ]
        else
          [
            (
              {
                inherit loc;
                name = shown loc;
                type = option.type.description;
                description = option.description or "";
              }
              // lib.filterAttrs (
                key: _:
                elem key [
                  "default"
                  "defaultText"
                  "example"
                ]
              ) option
            )
          ]
          ++ documented (loc ++ option.type.placeholder) option.type.subOptions
      ) options
    );
in
properties
// {
  inherit evalModules types;
  optionAttrSetToDocList = documented [ ];
}
