# As much of nixpkgs' lib and module system as nix/module.nix uses, for a machine that has no nixpkgs. Types are checked
# only as far as a name; what is checked is defaults, rendering and the unit.
rec {
  lib = rec {
    inherit (builtins) attrNames mapAttrs concatStringsSep;
    concatMapStringsSep = separator: f: list: concatStringsSep separator (map f list);
    filterAttrs =
      keep: set:
      builtins.listToAttrs (
        builtins.filter (pair: keep pair.name pair.value) (
          map (name: {
            inherit name;
            value = set.${name};
          }) (attrNames set)
        )
      );
    recursiveUpdate =
      one: other:
      one
      // mapAttrs (
        name: value:
        if builtins.isAttrs value && builtins.isAttrs (one.${name} or null) then
          recursiveUpdate one.${name} value
        else
          value
      ) other;
    optional = condition: value: if condition then [ value ] else [ ];
    optionalAttrs = condition: set: if condition then set else { };
    mkIf = condition: content: if condition then content else { };
    literalExpression = text: text;
    mkOption = option: option // { _type = "option"; };
    mkEnableOption =
      description:
      mkOption {
        type = types.bool;
        default = false;
        inherit description;
      };
    types = {
      bool = "bool";
      int = "int";
      float = "float";
      str = "str";
      path = "path";
      port = "port";
      package = "package";
      anything = "anything";
      number = "number";
      ints = {
        positive = "positive";
        unsigned = "unsigned";
      };
      enum = values: { enum = values; };
      nullOr = type: { nullOr = type; };
      listOf = type: { listOf = type; };
      attrsOf = type: { attrsOf = type; };
      oneOf = types: { oneOf = types; };
      either = one: other: { oneOf = [ one other ]; };
    };
  };

  # Options with what the user wrote in the place of their defaults; unknown names are an error, as in the real one.
  valued =
    path: options: written:
    let
      unknown = builtins.filter (name: !(options ? ${name})) (builtins.attrNames written);
    in
    if unknown != [ ] then
      throw "no such option: ${path}.${builtins.head unknown}"
    else
      builtins.mapAttrs (
        name: option:
        if option._type or "" == "option" then
          written.${name} or option.default or (throw "${path}.${name} is not set")
        else
          valued "${path}.${name}" option (written.${name} or { })
      ) options;

  evaluated =
    module: written:
    let
      pkgs = {
        system = "x86_64-linux";
        llama-cpp = "/pkgs/llama-cpp";
        coreutils = "/pkgs/coreutils";
        writeText = name: text: { inherit name text; };
      };
      self.packages.x86_64-linux.default = "/pkgs/llama-router";
      result = module self { inherit lib pkgs config; };
      config.services.llama-router = valued "services.llama-router" result.options.services.llama-router written;
    in
    {
      inherit (result) config;
      options = described result.options.services.llama-router;
    };

  # Options with their descriptions and defaults; a package is told by the text that the manual shows.
  described =
    options:
    builtins.mapAttrs (
      _: option:
      if option._type or "" == "option" then
        {
          inherit (option) description;
          default = option.defaultText or option.default;
        }
      else
        described option
    ) options;
}
