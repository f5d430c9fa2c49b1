package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
)

//go:embed static templates
var files embed.FS

// assets are the static files of the page. Their URLs contain a hash of all files, so
// that browsers can cache them for ever.
type assets struct {
	build string           // the hash
	files map[string]asset // by name
}

type asset struct{ plain, zipped []byte }

func readAssets(parts []Part) (assets, error) {
	a := assets{files: make(map[string]asset)}
	h := sha256.New()
	for _, folder := range folders(parts) {
		err := fs.WalkDir(folder, ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := fs.ReadFile(folder, name)
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%s %d\n%s", name, len(content), content)
			if dir, base := path.Split(name); dir == "static/" {
				a.files[base] = asset{content, zipped(content)}
			}
			return nil
		})
		if err != nil {
			return assets{}, fmt.Errorf("read the page's files: %w", err)
		}
	}
	a.build = hex.EncodeToString(h.Sum(nil)[:8])
	return a, nil
}

// Build identifies the templates and static files.
func (s *Server) Build() string { return s.assets.build }

// url returns the path of an asset.
func (a assets) url(name string) string { return "/static/" + a.build + "/" + name }

func (s *Server) serveAsset(w http.ResponseWriter, r *http.Request) {
	found, ok := s.assets.files[r.PathValue("name")]
	if !ok || r.PathValue("build") != s.assets.build {
		s.ServeNotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", mime.TypeByExtension(path.Ext(r.PathValue("name"))))
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	content := found.plain
	if acceptsGzip(r) {
		content = found.zipped
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", strconv.Itoa(len(content)))
	w.Write(content) // the client has gone
}
