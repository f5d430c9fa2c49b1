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
)

//go:embed static templates
var files embed.FS

// assets are the files the page loads from us. Their addresses carry a hash of
// all of them, so that a browser may keep them for ever.
type assets struct {
	build string
	bytes map[string][]byte // by name
}

func readAssets() (assets, error) {
	a := assets{bytes: make(map[string][]byte)}
	h := sha256.New()
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(content), content)
		if dir, base := path.Split(name); dir == "static/" {
			a.bytes[base] = content
		}
		return nil
	})
	if err != nil {
		return assets{}, fmt.Errorf("read the page's files: %w", err)
	}
	a.build = hex.EncodeToString(h.Sum(nil)[:8])
	return a, nil
}

// url is where an asset is served.
func (a assets) url(name string) string { return "/static/" + a.build + "/" + name }

func (s *server) serveAsset(w http.ResponseWriter, r *http.Request) {
	content, ok := s.assets.bytes[r.PathValue("name")]
	if !ok || r.PathValue("build") != s.assets.build {
		s.serveNotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(r.PathValue("name"))))
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Write(content) //nolint:errcheck // the client has gone
}
