package simnet

import (
	"encoding/json"
	"hash/fnv"
	"image"
	"image/color"
	"image/jpeg"
	"math/rand/v2"
	"net/http"
	"strconv"
)

func (n *Net) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /subscribe", n.ready(n.subscribe))
	mux.HandleFunc("GET /xrpc/com.atproto.sync.subscribeRepos", n.ready(n.subscribeRepos))
	n.routeArchive(mux)
	mux.HandleFunc("GET /xrpc/network.bsky.jetstream.subscribeEvents", n.offers(n.ready(n.subscribeEvents)))
	mux.HandleFunc("GET /xrpc/network.bsky.jetstream.getZstdDictionary", n.offers(n.ready(n.getZstdDictionary)))
	mux.HandleFunc("GET /blob/{did}/{cid}", picture)
	mux.HandleFunc("/xrpc/{nsid}", n.xrpc(endpoints()))
	mux.HandleFunc("GET /{did}", n.directory)
	mux.HandleFunc("POST /admin/play", n.adminPlay)
	mux.HandleFunc("POST /admin/fault", func(w http.ResponseWriter, r *http.Request) {
		fault := Fault(r.URL.Query().Get("kind"))
		if fault == Restart || fault == Renumber {
			go func() { // the server that handles this request goes down
				if err := n.Do(fault); err != nil {
					n.cfg.Logger.Error("simnet_fault_failed", "fault", fault, "error", err)
				}
			}()
			w.WriteHeader(http.StatusAccepted)
			return
		}
		if err := n.Do(fault); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("GET /admin/fired", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(n.Fired()) // the client left
	})
	mux.HandleFunc("GET /admin/truth", func(w http.ResponseWriter, _ *http.Request) {
		encoder := json.NewEncoder(w)
		for _, e := range n.log.Entries() {
			if encoder.Encode(e) != nil {
				return
			}
		}
	})
	return mux
}

// ready returns a handler that responds with 503 during the fault Refuse.
func (n *Net) ready(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if n.refuse.Load() {
			n.fired.add(Refuse)
			http.Error(w, "service not ready: cursor replay warming up", http.StatusServiceUnavailable)
			return
		}
		serve(w, r)
	}
}

func (n *Net) adminPlay(w http.ResponseWriter, r *http.Request) {
	count, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil || count < 1 || count > 1_000_000 {
		http.Error(w, "n: expected a number from 1 to 1000000", http.StatusBadRequest)
		return
	}
	n.Play(count)
}

// picture draws the thumbnail of a card. The same name gives the same picture.
func picture(w http.ResponseWriter, r *http.Request) {
	h := fnv.New64a()
	h.Write([]byte(r.PathValue("cid"))) // never fails
	random := rand.New(rand.NewPCG(h.Sum64(), 1))
	const width, height = 600, 315
	shade := func() color.RGBA {
		return color.RGBA{uint8(40 + random.IntN(180)), uint8(60 + random.IntN(160)), uint8(80 + random.IntN(150)), 255}
	}
	from, to, disc := shade(), shade(), shade()
	x0, y0, radius := random.IntN(width), random.IntN(height), 40+random.IntN(120)
	horizon := height/2 + random.IntN(height/3)
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			c := blend(from, to, (x+2*y)*255/(width+2*height))
			if dx, dy := x-x0, y-y0; dx*dx+dy*dy < radius*radius {
				c = blend(c, disc, 170)
			}
			if y > horizon+(x*(random.IntN(2)+1)/97)%9 {
				c = blend(c, to, 120)
			}
			img.SetRGBA(x, y, c)
		}
	}
	w.Header().Set("Content-Type", "image/jpeg")
	w.Header().Set("Cache-Control", "public, max-age=86400")
	jpeg.Encode(w, img, &jpeg.Options{Quality: 80}) // the client left
}

func blend(a, b color.RGBA, part int) color.RGBA {
	mix := func(x, y uint8) uint8 { return uint8((int(x)*(255-part) + int(y)*part) / 255) }
	return color.RGBA{mix(a.R, b.R), mix(a.G, b.G), mix(a.B, b.B), 255}
}
