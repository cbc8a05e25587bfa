{
  description = "llama-router: one OpenAI-compatible endpoint in front of a pile of small GPUs";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forEach = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
    in
    {
      packages = forEach (pkgs: rec {
        llama-router = pkgs.callPackage ./nix/package.nix { };
        default = llama-router;
      });

      apps = forEach (pkgs: rec {
        llama-router = {
          type = "app";
          program = nixpkgs.lib.getExe self.packages.${pkgs.system}.default;
        };
        default = llama-router;
      });

      devShells = forEach (pkgs: {
        default = pkgs.mkShell {
          packages = [
            pkgs.python3
            pkgs.gnumake
            pkgs.git
            pkgs.curl
            pkgs.nginx
            pkgs.llama-cpp
            pkgs.chromium
          ];
          # What pip installs is linked against libraries where other systems have them.
          LD_LIBRARY_PATH = pkgs.lib.makeLibraryPath [
            pkgs.stdenv.cc.cc.lib
            pkgs.zlib
          ];
        };
      });

      checks = forEach (pkgs: {
        package = self.packages.${pkgs.system}.default;
        module =
          (nixpkgs.lib.nixosSystem {
            inherit (pkgs) system;
            modules = [
              self.nixosModules.default
              {
                boot.isContainer = true;
                system.stateVersion = "26.05";
                services.llama-router = {
                  enable = true;
                  models.tiny.model = "/srv/models/tiny.gguf";
                };
              }
            ];
          }).config.system.build.toplevel;
      });

      nixosModules = rec {
        llama-router = import ./nix/module.nix self;
        default = llama-router;
      };

      formatter = forEach (pkgs: pkgs.nixfmt-rfc-style);
    };
}
