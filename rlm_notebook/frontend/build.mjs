// Bundles the sources into the two committed files; with --check, only tells whether they are fresh.
import { build } from "esbuild";
import { readFile, writeFile, mkdir } from "node:fs/promises";

const result = await build({
  entryPoints: { widget: "src/widget.ts" },
  outdir: "dist",
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  write: false,
});

let stale = false;
for (const file of result.outputFiles) {
  const name = file.path.split("/").pop();
  const path = `dist/${name}`;
  if (process.argv.includes("--check")) {
    const committed = await readFile(path, "utf8").catch(() => "");
    if (committed !== file.text) {
      console.error(`${path} is not what the sources build: run "make frontend"`);
      stale = true;
    }
  } else {
    await mkdir("dist", { recursive: true });
    await writeFile(path, file.text);
    console.log(`${path} ${(file.text.length / 1024).toFixed(1)} KB`);
  }
}
process.exit(stale ? 1 : 0);
